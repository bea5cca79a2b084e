"""Nothing is named that is not there: links, names, commands, targets, tests, events."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from tests.docs import source
from tests.docs.pages import Page, paths, rows_of, shown
from tests.support.sources import ROOT

PAGES = {path: Page(path) for path in paths()}
_DOTTED = re.compile(r"(?<![\w/.\"-])chancy(?:\.[A-Za-z_]\w*)+")
_TEST = re.compile(r"((?:tests|chancy/testing)/[\w/]+\.py)(?:::(\w+))?")


def missing(check: Callable[[Page], Iterator[str]]) -> list[str]:
    """What a check finds, each with its page."""
    return [f"{shown(page.path)}: {text}" for page in PAGES.values() for text in check(page)]


def _links(page: Page) -> Iterator[str]:
    for link in page.links:
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        if not path.exists() or (anchor and anchor not in (PAGES.get(path) or Page(path)).anchors):
            yield link


def test_links_resolve() -> None:
    assert missing(_links) == []


def _dotted_names(page: Page) -> Iterator[str]:
    texts = source.texts()
    names = {name for span in page.spans for name in _DOTTED.findall(span)}
    # `chancy.push` on an object that the page calls chancy, and functions in SQL, are no modules.
    yield from (name for name in names if name not in texts and not _exists(name))


def test_dotted_names_import() -> None:
    assert missing(_dotted_names) == []


@cache
def _exists(name: str) -> bool:
    from chancy import Chancy

    parts = name.split(".")
    if len(parts) == 2 and hasattr(Chancy, parts[1]):
        return True
    if len(parts) == 2 and parts[1] in _SQL:
        return True
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        except ImproperlyConfigured:  # a module of the Django app, which needs settings
            return True
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


#: What a page may name in the schema ``chancy``.
_SQL = frozenset(
    re.findall(
        r"create (?:table|function|sequence) \{schema\}\.(\w+)",
        "\n".join(
            path.read_text(encoding="utf-8")
            for folder in ("migrations", "plugins")
            for path in (ROOT / folder).rglob("versions/*/*.sql")
        ),
    )
)


#: The commands, and those of the plugin that the guide writes.
_COMMANDS = {path for path, _ in source.commands()} | {"chancy audit", "chancy audit list"}
_GROUPS = {path.rpartition(" ")[0] for path in _COMMANDS if path.count(" ") == 2}
#: Names of sessions, which look like commands.
_SESSIONS = {
    "claims",
    "settlements",
    "upkeep",
    "listener",
    "waiting",
    "heartbeat",
    "migrations",
}


def _commands(page: Page) -> Iterator[str]:
    for span in page.spans + [line[2:] for line in _typed(page)]:
        words = span.split()
        if words[0] != "chancy" or len(words) < 2 or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        if words[1] in _SESSIONS:
            continue
        command = " ".join(words[:2])
        if command in _GROUPS and len(words) > 2 and re.fullmatch(r"[a-z]+", words[2]):
            command = " ".join(words[:3])
        if command not in _COMMANDS:
            yield span


def test_commands_are_there() -> None:
    assert missing(_commands) == []


def _typed(page: Page, program: str = "chancy") -> list[str]:
    lines = [
        line
        for block in page.blocks
        if block.language == "console"
        for line in block.text.splitlines()
    ]
    return [line for line in lines if line.startswith(f"$ {program} ")]


_OPTIONS = {
    spelling
    for _, command in source.commands()
    for parameter in command.params
    for spelling in (*parameter.opts, *parameter.secondary_opts)
} | {"--help", "--version", "--randomly-seed"}


def _options(page: Page) -> Iterator[str]:
    spans = [span for span in page.spans if span.startswith(("--", "chancy "))]
    for text in spans + _typed(page):
        if not _OPTIONS.issuperset(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)):
            yield text


def test_options_are_there() -> None:
    assert missing(_options) == []


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    def others(page: Page) -> Iterator[str]:
        typed = [line[2:] for line in _typed(page, "make")]
        for text in typed + [span for span in page.spans if span.startswith("make ")]:
            named = re.findall(r"[a-z-]+", text.partition("#")[0].removeprefix("make "))
            if not targets.issuperset(named):
                yield text

    assert missing(others) == []


def _tests(page: Page) -> Iterator[str]:
    for file, name in _TEST.findall(page.text):
        path = ROOT / file
        if not path.is_file() or (name and not re.search(rf"def {name}\(", _text(path))):
            yield f"{file}::{name}"


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_tests_are_there() -> None:
    assert missing(_tests) == []


def test_events_are_there() -> None:
    """What looks like the name of an event in a link to the page of logs is one."""
    events = {event.name for event in source.events()}

    def others(page: Page) -> Iterator[str]:
        names = re.findall(r"\[`(\w+)`\]\([^)]*logging\.md\)", page.text)
        yield from (name for name in names if name not in events)

    assert missing(others) == []


def test_the_marks_of_the_faults_are_those_of_their_tests() -> None:
    """† stands for the mark chaos: `make test` leaves the test out."""
    page = Page(ROOT / "docs" / "explanation" / "faults.md")
    rows = [row for row in rows_of(page.section("The list")) if len(row) == 4]
    assert len(rows) > 20
    for _, _, holds, tests in rows:
        for file, name in _TEST.findall(tests):
            text = (ROOT / file).read_text(encoding="utf-8")
            before = text.partition(f"def {name}(")[0].rpartition("\n\n\n")[2]
            whole = re.search(r"^pytestmark = .*chaos", text, re.MULTILINE)
            decorated = re.search(r"^@pytest\.mark\.chaos", before, re.MULTILINE)
            marked = decorated is not None or whole is not None
            said = "†" in holds or f"`{file}::{name}` †" in tests
            assert marked == said, f"{file}::{name}"


def test_faults_without_an_everyday_test_give_the_reason() -> None:
    page = Page(ROOT / "docs" / "explanation" / "faults.md")
    for _, fault, holds, tests in (
        row for row in rows_of(page.section("The list")) if len(row) == 4
    ):
        everyday = "†" not in holds and re.search(r"::\w+`(?! †)", tests)
        assert bool(everyday) != ("only `make chaos`:" in holds), fault


def test_contributing_names_tests_of_each_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### Which tests")[2]
    rows = dict(re.findall(r"^\| `([\w/.]+)` \| (.+) \|$", text, re.MULTILINE))
    packages = {path.parent for path in (ROOT / "chancy").glob("*/__init__.py")}
    plugins = {path.parent for path in (ROOT / "plugins").glob("*/__init__.py")}
    linked = {ROOT / "chancy" / name for name in ("plugins", "migrations")}
    named = {ROOT / name for name in rows}
    assert (packages - linked) | plugins <= named, "a package is missing"
    assert all(path.exists() for path in named), "a package is gone"
    for tests in rows.values():
        for pattern in re.findall(r"`([^`]+)`", tests):
            assert list(ROOT.glob(pattern)), pattern
