"""The table of the page of ten tasks counts what the page shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.docs.pages import page, rows_of

TASKS = page("docs/explanation/ten-tasks.md")
LIBRARIES = ("chancy", "Celery", "procrastinate", "Oban")
#: The code of one library for one task, below its heading, and the names listed above it.
_PART = re.compile(r"### (\w+)\n\n(.*?)(?=\n##|\Z)", re.DOTALL)
_BLOCK = re.compile(r"```(?:python|elixir)[^\n]*\n(.*?)```", re.DOTALL)
_TASK = re.compile(r"^## (\d+[ab]?\. [^\n]*)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"^(\d+)", re.MULTILINE)
#: Imports, comments, ``@impl``, and lines that only close something.
_UNCOUNTED = re.compile(r"\s*((from|import) .*|#.*|@impl .*|end\)?|[\])},]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    names: list[str]
    code: str

    @property
    def lines(self) -> int:
        return sum(not _UNCOUNTED.fullmatch(line) for line in self.code.splitlines())

    def __str__(self) -> str:
        return f"{self.lines} · {len(self.names)}"


def solutions() -> dict[str, dict[str, Solution | None]]:
    """The solutions by task and library; None where the page has only prose."""
    return {
        title: {library: _solution(text) for library, text in _PART.findall(body)}
        for title, body in _TASK.findall(TASKS.text)
    }


def _solution(text: str) -> Solution | None:
    block = _BLOCK.search(text)
    if block is None:
        return None
    listed = re.match(r"Names: ([^.`\n]*(?:`[^`]*`[^.`\n]*)*)", text)
    assert listed is not None, text
    return Solution(names=re.findall(r"`([^`]+)`", listed[1]), code=block[1])


def test_each_task_has_a_part_for_each_library() -> None:
    found = solutions()
    assert [tuple(one) for one in found.values()] == [LIBRARIES] * len(found)
    assert list(dict.fromkeys(int(number) for number in _NUMBER.findall("\n".join(found)))) == [
        *range(1, 11)
    ]


def test_the_table_counts_lines_and_names() -> None:
    shown = {cells[0]: cells[1:] for cells in rows_of(TASKS.section("Counted"))}
    counted = {
        title: ["—" if one is None else str(one) for one in by_library.values()]
        for title, by_library in solutions().items()
    }
    assert shown == counted


def test_the_listed_names_are_in_the_code() -> None:
    for by_library in solutions().values():
        for one in by_library.values():
            assert one is None or [name for name in one.names if name not in one.code] == []


def test_no_other_library_takes_less() -> None:
    assert [title for title, parts in solutions().items() if _needs_more(*parts.values())] == []


def _needs_more(ours: Solution | None, *others: Solution | None) -> bool:
    """Whether another library takes fewer lines or fewer names."""
    assert ours is not None
    return any(
        one and (one.lines < ours.lines or len(one.names) < len(ours.names)) for one in others
    )
