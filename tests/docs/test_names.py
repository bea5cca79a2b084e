"""Nothing is named that is not there: links, names, commands, targets, tests, events."""

from __future__ import annotations

import importlib
import re

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests.docs import source
from tests.docs.pages import Page, paths, rows_of, shown
from tests.support.sources import ROOT

PAGES = [Page(path) for path in paths()]
_DOTTED = re.compile(r"(?<![\w/.\"-])chancy(?:\.[A-Za-z_]\w*)+")
_TEST = re.compile(r"((?:tests|chancy/testing)/[\w/]+\.py)(?:::(\w+))?")


def by_page(page: Page) -> str:
    return shown(page.path)


@pytest.mark.parametrize("page", PAGES, ids=by_page)
def test_links_resolve(page: Page) -> None:
    for link in page.links:
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), f"{link}: no such file"
        if anchor:
            assert anchor in Page(path).anchors, f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=by_page)
def test_dotted_names_import(page: Page) -> None:
    texts = source.texts()
    names = {name for span in page.spans for name in _DOTTED.findall(span)}
    # `chancy.push` on an object that the page calls chancy, and functions in SQL, are no modules.
    wrong = [name for name in names if name not in texts and not _exists(name)]
    assert wrong == []


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


@pytest.mark.parametrize("page", PAGES, ids=by_page)
def test_commands_are_there(page: Page) -> None:
    # And those of the plugin that the guide writes.
    known = {path for path, _ in source.commands()} | {"chancy audit", "chancy audit list"}
    groups = {path.rpartition(" ")[0] for path in known if path.count(" ") == 2}
    for span in page.spans + [line[2:] for line in _typed(page)]:
        words = span.split()
        if words[0] != "chancy" or len(words) < 2 or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        if words[1] in (
            "claims",
            "settlements",
            "upkeep",
            "listener",
            "waiting",
            "heartbeat",
            "migrations",
        ):
            continue  # names of sessions
        command = " ".join(words[:2])
        assert command in known, span
        if command in groups and len(words) > 2 and re.fullmatch(r"[a-z]+", words[2]):
            assert " ".join(words[:3]) in known, span


def _typed(page: Page) -> list[str]:
    lines = [
        line
        for block in page.blocks
        if block.language == "console"
        for line in block.text.splitlines()
    ]
    return [line for line in lines if line.startswith("$ chancy ")]


@pytest.mark.parametrize("page", PAGES, ids=by_page)
def test_options_are_there(page: Page) -> None:
    known = {
        spelling
        for _, command in source.commands()
        for parameter in command.params
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "--version"}
    spans = [span for span in page.spans if span.startswith(("--", "chancy "))]
    for text in spans + _typed(page):
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            assert option in known or option in ("--randomly-seed",), text


@pytest.mark.parametrize("page", PAGES, ids=by_page)
def test_targets_of_make_are_there(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = [
        line[2:]
        for block in page.blocks
        if block.language == "console"
        for line in block.text.splitlines()
        if line.startswith("$ make ")
    ]
    for text in typed + [span for span in page.spans if span.startswith("make ")]:
        named = re.findall(r"[a-z-]+", text.partition("#")[0].removeprefix("make "))
        assert set(named) <= targets, text


@pytest.mark.parametrize("page", PAGES, ids=by_page)
def test_tests_are_there(page: Page) -> None:
    for file, name in _TEST.findall(page.text):
        path = ROOT / file
        assert path.is_file(), file
        if name:
            assert re.search(rf"def {name}\(", path.read_text(encoding="utf-8")), f"{file}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=by_page)
def test_events_are_there(page: Page) -> None:
    """What looks like the name of an event in a link to the page of logs is one."""
    for name in re.findall(r"\[`(\w+)`\]\([^)]*logging\.md\)", page.text):
        assert name in {event.name for event in source.events()}, name


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
