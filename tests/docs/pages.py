"""The pages of the documentation, read into what the tests look at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.sources import ROOT

_FENCE = re.compile(r"^(`{3,})\s*(\S*)\s*(.*)$")
_HEADING = re.compile(r"^(#{1,6}) +(.*?) *$", re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
#: The name of a file in the first line of a block: ``# jobs.py``.
_FILE = re.compile(r"^(?:#|--)\s*([\w./-]+\.\w+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block.

    :param line: of its first line of text in the page, from 1.
    :param words: what stands behind the language: ``no-run``, ``exit=1``, ``script``.
    """

    page: Path
    line: int
    language: str
    words: frozenset[str]
    text: str

    def __str__(self) -> str:
        return f"{shown(self.page)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that this block is, if its first line says so."""
        match = _FILE.match(self.text.partition("\n")[0])
        return match[1] if match else None


class Page:
    """One Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.blocks: list[Block] = []
        self.prose = self._read()

    def _read(self) -> str:
        """Collect the blocks; returns the text with empty lines in their place."""
        prose: list[str] = []
        begin, fence, language, words = 0, "", "", ""
        inside: list[str] = []
        for number, line in enumerate(self.text.splitlines(), 1):
            match = _FENCE.match(line)
            if not fence and match:
                begin, (fence, language, words) = number + 1, match.groups()
                inside = []
            elif fence and line.strip() == fence:
                self.blocks.append(
                    Block(
                        page=self.path,
                        line=begin,
                        language=language,
                        words=frozenset(words.split()),
                        text="\n".join(inside) + "\n",
                    )
                )
                fence = ""
            elif fence:
                inside.append(line)
            else:
                prose.append(line)
                continue
            prose.append("")
        assert not fence, f"{shown(self.path)}:{begin}: the block is not closed"
        return "\n".join(prose)

    @cached_property
    def spans(self) -> list[str]:
        """What stands in back-ticks."""
        return _SPAN.findall(self.prose)

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word within back-ticks or in a heading."""
        titles = {word for _, title in _HEADING.findall(self.prose) for word in title.split()}
        return words_of(self.prose) | titles

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Where a link may point to, made of the headings the way that code hosts do."""
        return frozenset(_anchor(title) for _, title in _HEADING.findall(self.prose))

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    def section(self, title: str) -> str:
        """The text below the heading that begins with this, up to the next of its level."""
        found = list(_HEADING.finditer(self.prose))
        for number, match in enumerate(found):
            if match[2] == title or match[2].startswith(f"{title} "):
                ends = [one.start() for one in found[number + 1 :] if len(one[1]) <= len(match[1])]
                return self.prose[match.end() : min(ends, default=len(self.prose))]
        raise AssertionError(f"{shown(self.path)} has no heading {title!r}")

    def column(self, title: str, number: int = 0) -> list[str]:
        """One column of the tables of a section, without their heads."""
        return [cells[number] for cells in rows_of(self.section(title)) if len(cells) > number]


def rows_of(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    rows: list[list[str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        ahead = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("|") and not _is_rule(line) and not _is_rule(ahead):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
    return rows


def words_of(text: str) -> frozenset[str]:
    """Every word within the back-ticks of a text."""
    return frozenset(word for span in _SPAN.findall(text) for word in re.findall(r"\w+", span))


def _is_rule(line: str) -> bool:
    return bool(re.fullmatch(r"\|[\s|:-]+\|", line))


def _anchor(title: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", title.lower())
    return kept.replace(" ", "-")


def paths() -> Iterator[Path]:
    """Every page."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        yield ROOT / name
    yield from sorted((ROOT / "docs").rglob("*.md"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def page(name: str) -> Page:
    """A page by its path in the repository."""
    return Page(ROOT / name)
