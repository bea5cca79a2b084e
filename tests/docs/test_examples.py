"""Every Python block compiles, and what a reader is told to type does what the page says."""

from __future__ import annotations

import ast
import os
import re
from codeop import CommandCompiler
from pathlib import Path

import pytest

from tests.docs.pages import Block, Page, paths, shown
from tests.docs.rehearsal import LEFT_OUT, PAGE_S, Forks, commands, is_worker, matches
from tests.support.sources import ROOT

PAGES = [Page(path) for path in paths()]
BLOCKS = [block for page in PAGES for block in page.blocks]
RUN = [
    page
    for page in PAGES
    if page.path.name in ("README.md", "ten-tasks.md")
    or page.path.parent.name in ("tutorial", "guides")
]

#: Pages that take longest, whose subjects have many tests of their own.
LONG = {
    "batches",
    "bulk-operations",
    "cookbook",
    "cron",
    "deploying",
    "django",
    "encryption",
    "executors",
    "from-arq",
    "from-celery",
    "from-fennel",
    "from-procrastinate",
    "from-pytask",
    "from-rq",
    "inside-jobs",
    "job-logs",
    "migrations",
    "plugins",
    "sentry",
    "shards",
    "streams",
    "ten-tasks",
    "testing",
    "tracing",
    "troubleshooting",
    "upgrading",
    "workflows",
}


#: Pages that begin with an empty database. The others add to the tables that are there, and their
#: queue ``default`` runs jobs in threads, not in processes as it is shipped.
EMPTY = {"README", "first-steps", "migrations"}


def test_python_blocks_compile() -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for block in BLOCKS:
        if block.language == "python":
            compile(block.text, str(block), "exec", flags=flags, dont_inherit=True)


@pytest.mark.timeout(PAGE_S + 30)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.chaos) if page.path.stem in LONG else page
        for page in RUN
    ],
    ids=lambda page: shown(page.path),
)
def test_the_examples_of_a_page_run(
    page: Page, request: pytest.FixtureRequest, rehearsals: Forks, tmp_path: Path
) -> None:
    """Page by page, each on a database of its own: an empty one if the page begins by migrating."""
    dsn: str = request.getfixturevalue("empty_dsn" if page.path.stem in EMPTY else "dsn")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("CHANCY_")
    }
    if any("REDIS_URL" in block.text for block in page.blocks):
        environment["REDIS_URL"] = request.getfixturevalue("redis_url")
    if any("SHARD_DSN" in block.text for block in page.blocks):
        environment["SHARD_DSN"] = request.getfixturevalue("dsn")
    output = tmp_path / ".output"
    code = rehearsals.run([str(page.path)], environment | {"CHANCY_DSN": dsn}, output)
    said = output.read_text(encoding="utf-8")
    assert code == 0, said
    expected = [block for block in page.blocks if not block.words & LEFT_OUT]
    counted = [
        block
        for block in expected
        if block.language in ("python", "console") or "run" in block.words
    ]
    assert f"{len(counted)} blocks done" in said.splitlines()


_OTHERS = ("from-", "ten-tasks", "fastapi")


def test_the_examples_are_not_all_left_out() -> None:
    """A page whose blocks are all marked would pass without a word."""
    for page in RUN:
        python = [block for block in page.blocks if block.language == "python"]
        # Pages with code of libraries that the tests do not have.
        allowed = {"other"} if page.path.name.startswith(_OTHERS) else set()
        left_out = [block for block in python if block.words & LEFT_OUT - allowed]
        assert left_out == [], "a Python block of these pages is run"
    assert sum(is_worker(block) for page in RUN for block in page.blocks) >= 1


def test_blocks_can_be_pasted_at_the_prompt() -> None:
    """Of Python before 3.13, where an empty line ends a block, and nothing else does."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for block in BLOCKS:
        if block.language != "python" or block.file or block.words:
            continue
        compiler = CommandCompiler()
        compiler.compiler.flags |= flags
        typed: list[str] = []
        for line in [*block.text.splitlines(), ""]:
            typed.append(line)
            try:
                complete = compiler("\n".join(typed), str(block)) is not None
            except SyntaxError as error:
                raise AssertionError(f"{block}: {error} at {line!r}") from error
            typed = [] if complete else typed
        assert typed == [], block


def test_blocks_have_a_language_and_words_that_mean_something() -> None:
    languages = {"python", "console", "sql", "toml", "text", "ini", "yaml", "elixir"}
    for block in BLOCKS:
        assert block.language in languages, block
        for word in block.words:
            assert re.fullmatch(r"no-run|other|run|script|exit=\d+", word), f"{block}: {word}"


@pytest.mark.parametrize(
    ("said", "page", "same"),
    [
        ("a  b\nc\n", "a b\nc\n", True),
        ("id 17\n", "id …\n", True),
        ("id 17\nmore\n", "id …\n", False),
        ("a\nb\nc\n", "a\n…\nc\n", True),
        ("a\n\nb\n", "a\n\nb\n", True),
        ("a\nb\n", "b\n", False),
        ("anything\n", "", True),
    ],
)
def test_shown_output_is_compared(said: str, page: str, same: bool) -> None:
    assert matches(said, page) is same


def test_commands_of_a_block() -> None:
    block = Block(
        page=ROOT / "README.md",
        line=1,
        language="console",
        words=frozenset(),
        text="$ chancy push a.b \\\n    --queue q  # why\nout\n$ ls\n",
    )
    assert commands(block) == [("chancy push a.b --queue q", "out\n"), ("ls", "")]
