"""The progress bar of ``chancy redis stream sendmany`` on a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command import environment
from tests.support.sources import ROOT

#: Prints what it has taken of memory at most, in kB, behind what the command prints.
PROGRAM = r"""
import re, sys
from chancy.cli.main import cli
cli(sys.argv[1:], standalone_mode=False)
# What getrusage says is at least what the process had that started this one.
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""
LINE = json.dumps({"order_id": 1, "note": "x" * 1_900}) + "\n"
#: What moves the cursor, erases and colours.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What a person has seen, and what went to stdout."""

    def __init__(self, file: Path, url: str, *, pipe: bool) -> None:
        words = ["redis", "stream", "sendmany", "refunds", "-" if pipe else str(file)]
        words += ["--app", "tests.plugins.redis.streams.shop:make"]
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 100, 0, 0))
        reading, writing = os.pipe()
        source = subprocess.Popen(["cat", str(file)], stdout=subprocess.PIPE) if pipe else None
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdin=source.stdout if source else subprocess.DEVNULL,
            stdout=writing,
            stderr=slave,
            cwd=ROOT,
            env=environment({"SHOP_REDIS": url, "TERM": "xterm-256color"}),
        )
        os.close(slave)
        os.close(writing)
        self.seen = _read(master).decode()
        self.out = _read(reading).decode().splitlines()
        self.code = process.wait(30)
        if source is not None and source.stdout is not None:
            source.stdout.close()
            source.wait(30)

    @property
    def text(self) -> str:
        """What was seen, one frame after the other."""
        return _CONTROL.sub("", self.seen)

    def counts(self, what: str) -> Sequence[int]:
        """The numbers of the frames that count so."""
        return [int(one.replace(",", "")) for one in re.findall(rf"([\d,]+) {what}", self.text)]


def _read(end: int) -> bytes:
    found = b""
    try:
        while some := os.read(end, 65_536):
            found += some
    except OSError:
        pass  # a terminal ends so when nobody has its other side any more
    os.close(end)
    return found


@pytest.mark.chaos
@pytest.mark.row("R38")
def test_a_bar_shows_how_far_a_file_is_in_little_memory(redis_url: str, tmp_path: Path) -> None:
    """20 MB, checked and then sent, in no more memory than 4 MB."""
    file = tmp_path / "orders.jsonl"

    def shown_for(count: int) -> tuple[Terminal, int]:
        file.write_text(LINE * count)
        shown = Terminal(file, redis_url, pipe=False)
        assert shown.code == 0, shown.text
        said, peak_kb = shown.out
        assert said == f"{count:,} sent", "nothing else is on stdout"
        return shown, int(peak_kb)

    _, few_kb = shown_for(2_000)
    shown, many_kb = shown_for(10_000)
    assert many_kb < few_kb + 4_000
    checked, sent = shown.counts("checked"), shown.counts("sent")
    assert (checked, sent) == (sorted(checked), sorted(sent))
    # A quick machine has checked all before the first frame.
    assert all(0 < one <= 10_000 for one in checked)
    assert sent[-1] == 10_000
    percents = {int(one) for one in re.findall(r"(\d+) %", shown.text)}
    assert percents > {0, 100}, "it moves"
    assert "━" in shown.text
    # Its line is empty in the end, and the cursor is to be seen again.
    assert shown.seen.rindex("\x1b[2K") > shown.seen.rindex("sent")
    assert shown.seen.rindex("\x1b[?25h") > shown.seen.rindex("\x1b[?25l")


def test_a_bar_counts_bytes_where_no_end_is_known(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(LINE * 3_000)
    shown = Terminal(file, redis_url, pipe=True)
    assert (shown.code, shown.out[0]) == (0, "3,000 sent")
    assert "checked" not in shown.text
    assert max(shown.counts("bytes")) > 0
    assert max(shown.counts("sent")) in (1_000, 2_000, 3_000)
