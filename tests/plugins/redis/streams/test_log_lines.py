"""What the lines of the log say: where they come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.sources import ROOT

FOLDER = ROOT / "plugins" / "redis" / "streams"
#: Lines that are about a whole process, its lead, its timers, or the rows of the outbox.
OTHERS = {"leadership.py", "leader_loop.py", "timers.py", "relay.py"}
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
#: Where each line is about a partition.
OF_PARTITIONS = {"consumer.py", "fetcher.py", "run.py", "loss.py", "overdue.py"}


def _lines() -> Iterator[tuple[str, str]]:
    """The modules and the texts of all lines that streams log."""
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=level),
                    args=[ast.Constant(value=str(text)), *_],
                ) if level in LEVELS:
                    yield path.name, text
                case _:
                    pass


@pytest.mark.row("R48")
def test_lines_name_their_processor_and_their_partition() -> None:
    lines = list(_lines())
    assert len(lines) > 25
    for module, text in lines:
        event, _, rest = text.partition(" ")
        assert event.replace("_", "").isalpha(), text
        if module not in OTHERS and event != "process_ends":
            assert rest.startswith("processor=%s"), text
            assert " partition=%d" in rest or module not in OF_PARTITIONS, text
