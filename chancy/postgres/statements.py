"""The SQL statements of the folder ``sql``, one file each, loaded for one schema."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from chancy.checks import check_schema_name

#: A role that may create objects in a schema of the search path could provide a function or an
#: operator that suits a statement better than the one of pg_catalog, and that a migration
#: would call: see CVE-2018-1058.
SEARCH_PATH = "pg_catalog, pg_temp"
#: The first statement of a transaction that migrates or grants.
SECURE = f"set local search_path = {SEARCH_PATH}"


def quoted(schema: str) -> str:
    """The schema as an SQL identifier. The name is checked and quoted."""
    return '"' + check_schema_name(schema).replace('"', '""') + '"'


def placeholders(schema: str) -> dict[str, str]:
    """Values for the braces in the SQL files: the schema as an identifier and as a literal."""
    return {
        "schema": quoted(schema),
        "schema_text": "'" + check_schema_name(schema).replace("'", "''") + "'",
    }


def load(folder: Traversable, name: str, schema: str) -> str:
    """Read one statement from its file, without the comment lines."""
    lines = folder.joinpath(f"{name}.sql").read_text(encoding="utf-8").splitlines()
    statement = "\n".join(line for line in lines if not line.startswith("--"))
    for placeholder, value in placeholders(schema).items():
        statement = statement.replace("{" + placeholder + "}", value)
    return statement


@lru_cache(maxsize=1_024)
def _load_core(name: str, schema: str) -> str:
    """A statement of the core, read once: an application and its parts load all of them."""
    return load(resources.files("chancy.postgres") / "sql", name, schema)


class Statements:
    """The text of every statement of the core, one attribute each."""

    def __init__(self, schema: str) -> None:
        self.schema = check_schema_name(schema)
        self.announce = self._load("announce")
        self.stop_requests = self._load("stop_requests")
        self.stop_worker = self._load("stop_worker")
        self.beat = self._load("beat")
        self.call_all = self._load("call_all")
        self.cancel = self._load("cancel")
        self.claim = self._load("claim")
        self.claim_front = self._load("claim_front")
        self.claim_set_aside = self._load("claim_set_aside")
        self.confirm = self._load("confirm")
        self.counts = self._load("counts")
        self.declare = self._load("declare")
        self.delete_finished = self._load("delete_finished")
        self.delete_queue = self._load("delete_queue")
        self.watch = self._load("watch")
        self.find = self._load("find")
        self.finish = self._load("finish")
        self.forget_finished = self._load("forget_finished")
        self.last_job = self._load("last_job")
        self.last_position = self._load("last_position")
        self.matching_jobs = self._load("matching_jobs")
        self.move = self._load("move")
        self.unwatch = self._load("unwatch")
        self.get = self._load("get")
        self.run_now = self._load("run_now")
        self.update_meta = self._load("update_meta")
        self.notify = self._load("notify")
        self.now = self._load("now")
        self.orphans = self._load("orphans")
        self.pause = self._load("pause")
        self.position = self._load("position")
        self.prioritize = self._load("prioritize")
        self.promote = self._load("promote")
        self.push = self._load("push")
        #: For new jobs: skips the lookup of their ids, which takes a seventh of the time.
        self.push_new = self.push.replace("  on conflict (id) do nothing\n", "")
        self.push_plain = self._load("push_plain")
        self.push_plain_new = self.push_plain.replace("\n  on conflict (id) do nothing", "")
        self.push_one = self._load("push_one")
        self.push_unique = self._load("push_unique")
        self.pushed_before = self._load("pushed_before")
        self.release = self._load("release")
        self.requeue = self._load("requeue")
        self.reschedule = self._load("reschedule")
        self.queues = self._load("queues")
        self.recover = self._load("recover")
        self.register = self._load("register")
        self.resume = self._load("resume")
        self.running = self._load("running")
        self.settled = self._load("settled")
        self.locked = self._load("locked")
        self.suppress = self._load("suppress")
        self.survey = self._load("survey")
        self.unconfirmed = self._load("unconfirmed")
        self.unregister = self._load("unregister")
        self.workers = self._load("workers")

    def _load(self, name: str) -> str:
        return _load_core(name, self.schema)
