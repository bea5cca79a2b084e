"""Tables have one owner: the statements of a plugin name its own and the core's, no others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.support.sources import files, shown

_CREATED = re.compile(
    r"^create (?:unlogged )?(table|function|type|sequence) \{schema\}\.([a-z_0-9]+)", re.M
)
_NAMED = re.compile(r"\{schema\}\.([a-z_0-9]+)")
_COMMENT = re.compile(r"--.*$", re.M)

#: Functions that the plugin of dead letters supplies for other plugins.
SUPPLIED = {"replays_of", "file_events", "events_to_replay", "mark_replayed"}
#: Where jobs are inserted, with the way in that passes them to the hook `pushing`. A new statement
#: needs a way of `PushWay`, and a case in tests/integration/test_pushing_hook.py.
INSERTS = {
    "chancy/postgres/sql/push.sql": "push",
    "chancy/postgres/sql/push_one.sql": "push",
    "chancy/postgres/sql/push_plain.sql": "push",
    "migrations/versions/0001_core/36_push_keyed.sql": "push",
    "migrations/versions/0001_core/37_push_unique_all.sql": "push",
    "migrations/versions/0001_core/41_push.sql": "SQL, which no plugin sees",
    "plugins/batch/migrations/versions/0001_batches/10_batches_call.sql": "batch",
    "plugins/cron/sql/fire.sql": "cron",
    "plugins/cron/sql/run.sql": "cron",
    "plugins/dead_letter/sql/replay.sql": "replay",
    "plugins/workflow/migrations/versions/0001_workflows/12_workflows_start.sql": "workflow",
}
#: Where jobs become pending without `admit`: at the position that they had, to be judged anew by
#: the rules of their queue. None of these jobs is on hold: it was pending before.
RETURNS = {
    "plugins/limits/migrations/versions/0001_limits/15_limits_release.sql",
    "plugins/limits/migrations/versions/0001_limits/24_limits_restore.sql",
}
_INSERTING = re.compile(r"insert into \{schema\}\.jobs\b")
_PENDING = re.compile(r"update \{schema\}\.jobs\b[^;]*?\bset state = 0\b", re.S)


#: The text of each statement by its path, without comments.
STATEMENTS: Mapping[str, str] = {
    shown(path): _COMMENT.sub("", path.read_text())
    for path in files(".sql", below=("chancy", "migrations", "plugins"))
}


def _owner(path: str) -> str:
    top, name = Path(path).parts[:2]
    return name if top == "plugins" else "the core"


CREATED: Mapping[str, tuple[str, str]] = {
    name: (_owner(path), kind)
    for path, text in STATEMENTS.items()
    for kind, name in _CREATED.findall(text)
}


def test_statements_name_only_tables_of_their_owner_and_of_the_core() -> None:
    foreign = [
        f"{path}: {name}, of {CREATED[name][0]}"
        for path, text in STATEMENTS.items()
        for name in sorted({*_NAMED.findall(text)})
        if name in CREATED
        and CREATED[name][0] not in (_owner(path), "the core")
        and name not in SUPPLIED
    ]
    assert foreign == []
    assert {CREATED[name] for name in SUPPLIED} == {("dead_letter", "function")}
    assert CREATED["jobs"] == ("the core", "table")


def test_each_statement_that_inserts_jobs_belongs_to_a_way_in_and_admits_them() -> None:
    inserting = {path for path, text in STATEMENTS.items() if _INSERTING.search(text)}
    assert inserting == INSERTS.keys()
    assert [path for path in inserting if "{schema}.admit(" not in STATEMENTS[path]] == []


def test_jobs_become_pending_only_where_they_are_admitted() -> None:
    assert {path for path, text in STATEMENTS.items() if _PENDING.search(text)} == RETURNS
