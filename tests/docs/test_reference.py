"""The reference pages name everything there is, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import cache

import click
import psycopg
import pytest

import chancy
from chancy import State
from chancy.attempt import outcome as attempt
from chancy.broker.notices import NoticeKind
from chancy.cli import settings
from chancy.cli.main import VARIABLES
from chancy.cli.options import SHARED
from chancy.embedded import PostgresServer
from chancy.plugin.processor_plugin import ProcessorPlugin
from chancy.plugins import standard
from chancy.states import TRANSITIONS
from tests.docs import source
from tests.docs.pages import Page, page, rows_of, words_of
from tests.support.sources import ROOT, code

API = page("docs/reference/api.md")
CLI = page("docs/reference/cli.md")
COMMANDS = dict(source.commands())


def test_every_public_name_is_in_the_api() -> None:
    assert set(chancy.__all__) <= API.words


def test_what_an_executor_is_made_of_is_in_the_api() -> None:
    """Whatever of chancy the example of an executor imports, and the top level does not have."""
    blocks = page("docs/guides/executors.md").blocks
    (example,) = (block for block in blocks if block.file == "lanes.py")
    found = {
        alias.name
        for node in ast.walk(ast.parse(example.text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chancy")
        for alias in node.names
    }
    assert {"Reporter", "CURRENT"} <= found
    assert found <= set(re.findall(r"\w+", API.text))


@pytest.mark.parametrize(
    "kind",
    [
        chancy.Chancy,
        chancy.Worker,
        chancy.Queue,
        chancy.ProcessOptions,
        chancy.ThreadOptions,
        chancy.AsyncOptions,
        chancy.DaskOptions,
        chancy.RayOptions,
        chancy.Job,
        chancy.job,
        PostgresServer,
    ],
)
def test_every_parameter_is_in_its_section(kind: type) -> None:
    section = API.section(kind.__name__ if kind is not PostgresServer else "Embedded")
    asked = set(source.parameters(kind)) - {"chancy"}
    if kind is chancy.job:
        asked -= {"func"}  # what is decorated
    # The first table of a section has the parameters, and no others.
    first = section.split("\n\n|")[1].split("\n\n")[0]
    assert {re.findall(r"`(\w+)`", row[0])[0] for row in rows_of(f"|{first}")} == asked


@pytest.mark.parametrize(
    "kind",
    [
        chancy.Chancy,
        chancy.Worker,
        chancy.Queue,
        chancy.Limit,
        chancy.Job,
        chancy.JobContext,
        chancy.Reference,
        chancy.Plugin,
        chancy.Runtime,
        chancy.QueuedJob,
        chancy.JobFilter,
        chancy.JobSelection,
        chancy.SelectedJobs,
        chancy.ChangedJobs,
        chancy.WorkerRecord,
        chancy.QueueCounts,
        chancy.Cancellation,
        chancy.Claim,
        chancy.Settlement,
        chancy.Failure,
        chancy.State,
        PostgresServer,
    ],
)
def test_every_member_is_in_its_section(kind: type) -> None:
    title = "Embedded" if kind is PostgresServer else kind.__name__
    fields = (
        [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    )
    if kind is chancy.State:
        fields = []  # the page of the states has them
    wanted = {*source.members(kind), *fields} - {name for name in vars(State) if name.isupper()}
    missing = wanted - words_of(API.section(title))
    # Ways of making a failure are the executors' business, not a reader's.
    assert missing - {"of", "named", "as_json", "from_json"} == set()


def test_every_outcome_has_its_row() -> None:
    section = API.section("Outcome")
    kinds = {one.__name__ for one in attempt.Outcome.__args__}
    assert {row[0].strip("`") for row in rows_of(section)} == kinds
    fields = {name for one in attempt.Outcome.__args__ for name in one.__annotations__}
    assert fields <= words_of(section)


def test_default_plugins_have_every_parameter() -> None:
    guide = page("docs/guides/plugins.md")
    for plugin in standard():
        kind = type(plugin)
        rows = rows_of(guide.section(kind.__name__))
        assert [row[0].strip("`") for row in rows] == source.parameters(kind), kind
        for row in rows:
            default = getattr(plugin, row[0].strip("`"))
            if isinstance(default, int | float):
                shown = f"`{default}`" if isinstance(default, bool) else f"{default:g}"
                assert row[1] == shown, row
        row_of = [row for row in rows_of(API.section("Default plugins")) if kind.__name__ in row[0]]
        assert set(source.parameters(kind)) <= words_of(row_of[0][1])


def test_every_hook_is_in_the_guide() -> None:
    hooks = {
        cell.strip("`").partition("(")[0]
        for cell in page("docs/guides/plugins.md").column("Write one")
    }
    assert hooks == {*source.members(chancy.Plugin), *source.members(ProcessorPlugin)}


def test_every_error_has_its_row() -> None:
    errors = page("docs/reference/errors.md")
    names = [one.__name__ for one in source.errors()]
    assert [cell.strip("`") for cell in errors.column("Errors")][: len(names)] != []
    listed = {cell.strip("`") for cell in errors.column("Errors")}
    assert set(names) <= listed
    tree = errors.blocks[0].text
    assert set(re.findall(r"\w+Error\b|\b[A-Z]\w+", tree)) == set(names)
    for one in source.errors():
        for base in one.__bases__:
            assert base.__name__ in tree or base in (
                Exception,
                TimeoutError,
                LookupError,
                ValueError,
            )
    assert "Interrupted" in errors.words


def test_the_transitions_are_those_of_the_code() -> None:
    rows = rows_of(page("docs/reference/states.md").section("Transitions"))
    listed = [tuple(cell.strip("`") for cell in row[:2]) for row in rows]
    expected = {
        ("–" if before is None else before.label, after.label)
        for before, afters in TRANSITIONS.items()
        for after in afters
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == expected


def test_every_state_is_listed() -> None:
    rows = [row for row in rows_of(page("docs/reference/states.md").text) if len(row) == 4]
    listed = [(row[0].strip("`"), row[1], row[2]) for row in rows if row[1].isdigit()]
    assert listed == [
        (state.label, str(int(state)), "yes" if state.final else "no") for state in State
    ]


#: Which levels stand in which section.
_SECTIONS = {
    "Error": {"error", "exception", "critical"},
    "Warning": {"warning"},
    "Info": {"info", "debug"},
    "Attempts of jobs": set(),
    "From the jobs": set(),
    "From streams": set(),
    "From the executors": {"info", "warning", "error", "exception"},
}


def test_every_event_is_listed_and_no_other() -> None:
    events = list(source.events())
    assert len(events) == source.log_calls(), "a message begins with a name, not with a value"
    logging = page("docs/reference/logging.md")
    listed: set[str] = set()
    for title in re.findall(r"^## (.*)$", logging.prose, re.MULTILINE):
        levels = next(levels for start, levels in _SECTIONS.items() if title.startswith(start))
        for row in rows_of(logging.section(title)):
            for name in re.findall(r"`(\w+)`", row[0]):
                listed.add(name)
                of_it = [event for event in events if event.name == name]
                assert levels & {event.level for event in of_it}, f"{name} is no {title}"
                assert {event.logger for event in of_it} == set(re.findall(r"`(\S+)`", row[1])), (
                    name
                )
    # What jobs say themselves has no name of ours.
    assert listed == {event.name for event in events if event.logger != "chancy.job"}
    assert "`chancy.job`" in logging.section("From the jobs")


def test_every_setting_is_listed() -> None:
    reference = page("docs/reference/settings.md")
    rows = rows_of(reference.section("Settings").partition("## ")[0])
    assert [row[0].strip("`") for row in rows] == list(settings.KEYS)
    assert [row[1].strip("`") for row in rows] == [f"CHANCY_{key.upper()}" for key in settings.KEYS]
    options = {row[2].strip("`") for row in rows} - {"–"}
    assert options == {f"--{name.replace('_', '-')}" for name in SHARED}
    variables = {
        (str(option.envvar), option.opts[0], path)
        for path, command in COMMANDS.items()
        for option in command.params
        if option.envvar
    }
    listed = {
        (row[0].strip("`"), row[1].strip("`"), row[2].strip("`"))
        for row in rows_of(reference.section("Variables of single commands"))
    }
    assert listed == variables
    every = {name for name, *_ in variables} | {f"CHANCY_{key.upper()}" for key in settings.KEYS}
    named = set(
        re.findall(r"`(CHANCY_[A-Z_]+)`", reference.section("Variables of single commands"))
    )
    assert every | named == set(VARIABLES)


def test_every_variable_that_is_read_is_listed() -> None:
    spelled = {
        name
        for path in code("chancy", "plugins")
        for name in re.findall(r"\bCHANCY_[A-Z_]+\b", path.read_text(encoding="utf-8"))
    }
    # How the supervisor talks to its children.
    assert (
        spelled - {"CHANCY_SUPERVISOR_LINE", "CHANCY_WORKER_NUMBER"}
        <= page("docs/reference/settings.md").words
    )


def test_every_command_and_option_has_its_place() -> None:
    shared = CLI.section("Shared options")
    missing = [
        f"{path} {spelling}"
        for path, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for spelling in (*parameter.opts, *parameter.secondary_opts)
        if not re.search(
            rf"`{spelling}[` ]",
            shared if parameter.name in SHARED and path not in _OWN else _own(path),
        )
    ]
    assert missing == []


@cache
def _own(path: str) -> str:
    """The section of a command, without those of its commands."""
    return CLI.section(f"`{path}`").partition("\n## ")[0]


#: Commands whose options of these names are their own.
_OWN = ("chancy demo",)


def test_no_command_is_made_up() -> None:
    titles = set(re.findall(r"^## `(chancy .*)`$", CLI.prose, re.MULTILINE))
    assert titles == set(COMMANDS)


def test_every_exit_code_is_listed() -> None:
    from chancy.cli import exits
    from chancy.plugins.redis.streams.group.halts import HALTED

    codes = (0, exits.NO, exits.USAGE, exits.TABLES, exits.AWAY, HALTED, 130, exits.PIPE, 143)
    assert set(CLI.column("Exit codes")) == set(map(str, codes))


def test_every_notice_is_listed() -> None:
    rows = rows_of(page("docs/reference/notices.md").section("Payloads"))
    listed = {row[0].strip("`"): re.findall(r"`(\w):`", row[1])[0] for row in rows}
    assert listed == {kind.name: kind.value for kind in NoticeKind}


def test_every_table_column_and_function_is_listed(dsn: str) -> None:
    tables = page("docs/reference/tables.md")
    with psycopg.connect(dsn) as connection:
        columns = connection.execute(
            "select table_name, column_name from information_schema.columns"
            " where table_schema = 'chancy' and table_name !~ '^(finished_jobs|recently_finished)_'"
        ).fetchall()
        functions = connection.execute(
            "select distinct proname::text from pg_proc where pronamespace = 'chancy'::regnamespace"
        ).fetchall()
        indexes = connection.execute(
            "select indexname::text from pg_indexes where schemaname = 'chancy'"
            " and tablename !~ '^finished_jobs_' and indexname !~ '_pkey$|_pkc$'"
        ).fetchall()
    for table in {row[0] for row in columns}:
        listed = [n for cell in tables.column(f"`{table}`") for n in re.findall(r"`(\w+)`", cell)]
        assert sorted(listed) == sorted(row[1] for row in columns if row[0] == table), table
    listed = [n for cell in tables.column("Functions") for n in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(row[0] for row in functions)
    assert {row[0] for row in indexes} <= tables.words


def test_every_page_is_in_the_index() -> None:
    """Of the pages, or of the folder that it is in."""
    indexes = [Page(path) for path in (ROOT / "docs").rglob("index.md")]
    listed = {
        (index.path.parent / link).resolve()
        for index in indexes
        for link in index.links
        if link.endswith(".md")
    }
    pages = {path.resolve() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - {(ROOT / "docs" / "index.md").resolve()} <= listed


def test_capabilities_of_a_cancel_are_listed() -> None:
    listed = [cell.strip("`") for cell in API.column("Cancellation")]
    assert listed == [one.name for one in chancy.Cancellation]
