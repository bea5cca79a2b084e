"""Leaders in processes of their own: killed, stopped, frozen, on wrong clocks."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chancy import Chancy, Worker
from chancy.plugins.leadership import Leadership
from tests.faults.worker_process import ROOT
from tests.support.command import environment
from tests.support.faketime import faketime
from tests.support.postgres_fixtures import OwnServer
from tests.support.sql import ask
from tests.support.waiting import eventually, eventually_sync

LONG = pytest.mark.chaos

#: What a busy machine may add, in seconds.
SLACK_S = 5.0

ACTS = """create table acts (
  term bigint not null, at timestamptz not null default clock_timestamp())"""


class Leader:
    """A process of `tests.faults.run_leader`."""

    def __init__(
        self, dsn: str, log: Path, lease_s: float, mode: str, env: dict[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.run_leader", dsn, str(lease_s), mode],
                cwd=ROOT,
                env=environment({"PYTHONPATH": str(ROOT), **(env or {})}),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def terms(self) -> list[int]:
        """The terms in which it has led."""
        return [int(term) for term in re.findall(r"^term (\d+)$", self.said, re.M)]

    def wait_for(self, line: str, timeout_s: float = 20.0) -> None:
        try:
            eventually_sync(lambda: re.search(f"^{line}", self.said, re.M), timeout=timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{line!r} was not said:\n{self.said[-3000:]}") from error

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


Start = Callable[..., Leader]


@pytest.fixture
def start(dsn: str, tmp_path: Path) -> Iterator[Start]:
    ask(dsn, ACTS)
    made: list[Leader] = []

    def begin(lease_s: float, mode: str = "polite", env: dict[str, str] | None = None) -> Leader:
        made.append(Leader(dsn, tmp_path / f"{len(made)}.log", lease_s, mode, env))
        return made[-1]

    yield begin
    for leader in made:
        leader.close()
    eventually_sync(
        lambda: (
            ask(
                dsn,
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and application_name like 'chancy%'",
            )
            == [(0,)]
        )
    )


def pair(start: Start, lease_s: float, mode: str = "polite") -> tuple[Leader, Leader, int]:
    """One that leads, one that is ready to follow, and the term.

    On a busy machine the first one may have lost its lease by then: others take their places.
    """
    while True:
        first = start(lease_s, mode)
        first.wait_for("term")
        second = start(lease_s)
        second.wait_for("ready")
        if len(first.terms) == 1 and not second.terms:
            return first, second, first.terms[0]
        first.close()
        second.close()


def took_over_s(dsn: str, second: Leader, since: float, term: int = 2) -> float:
    """Wait until the next term has begun, which it did not before the lease of the last one ended;
    returns the seconds from a moment to that."""
    lease = "select expires_at from chancy.leadership_leases where term = %s"
    ends = [end for (end,) in ask(dsn, lease, [term - 1])]
    second.wait_for(f"term {term}$")
    took_s = time.monotonic() - since
    eventually_sync(lambda: acts(dsn, term - 1))
    assert ask(dsn, "select at from acts where term = %s and at < any (%s)", [term, ends]) == []
    return took_s


def acts(dsn: str, after: int) -> int:
    """The number of writes in the terms after one."""
    return int(ask(dsn, "select count(*) from acts where term > %s", [after])[0][0])


def check_one_term_after_the_other(dsn: str) -> None:
    """Nothing was written in a term once the next one had begun."""
    spans = ask(dsn, "select term, min(at), max(at) from acts group by term order by term")
    assert len(spans) >= 2
    for before, after in itertools.pairwise(spans):
        assert before[2] < after[1], (before, after)


def test_a_killed_leader_is_followed_within_its_lease(dsn: str, start: Start) -> None:
    lease_s = 1.0
    first, second, term = pair(start, lease_s)
    killed = time.monotonic()
    first.signal(signal.SIGKILL)
    took_s = took_over_s(dsn, second, killed, term + 1)
    # The lease, and the look after it has ended.
    assert took_s < lease_s + lease_s / 30 + SLACK_S
    eventually_sync(lambda: acts(dsn, term))
    check_one_term_after_the_other(dsn)


@pytest.mark.parametrize("mode", [pytest.param("polite", marks=LONG), "stubborn"])
def test_a_frozen_leader_that_wakes_up_does_nothing_in_its_old_term(
    dsn: str, start: Start, mode: str
) -> None:
    lease_s = 1.0
    first, second, term = pair(start, lease_s, mode)
    first.signal(signal.SIGSTOP)
    took_s = took_over_s(dsn, second, time.monotonic(), term + 1)
    assert took_s < lease_s + lease_s / 30 + SLACK_S
    frozen_until = time.monotonic() + 2 * lease_s - took_s
    eventually_sync(lambda: time.monotonic() > frozen_until)
    first.signal(signal.SIGCONT)
    if mode == "stubborn":
        first.wait_for(f"refused {term}")
    count = acts(dsn, term)
    eventually_sync(lambda: acts(dsn, term) > count + 100)
    assert first.process.poll() is None
    # On a busy machine the second one may lose its lease, and take it again.
    assert first.terms[0] == term < second.terms[0]
    if mode == "stubborn":
        assert first.terms == [term]
    check_one_term_after_the_other(dsn)


def test_a_leader_that_is_frozen_inside_its_transaction_cannot_commit(
    dsn: str, start: Start
) -> None:
    lease_s = 1.0
    first, second, term = pair(start, lease_s, "transaction")
    first.tell()
    first.wait_for("inside 1")
    first.signal(signal.SIGSTOP)
    took_s = took_over_s(dsn, second, time.monotonic(), term + 1)
    assert took_s < lease_s + SLACK_S
    first.signal(signal.SIGCONT)
    first.tell()
    first.wait_for(f"refused {term} ")
    assert "committed" not in first.said
    eventually_sync(lambda: acts(dsn, term))
    assert ask(dsn, "select 1 from acts where term = %s", [term]) == []


@pytest.mark.chaos
@pytest.mark.parametrize("fake", ["+1h", "-1h", "+0 x2"])
def test_a_worker_on_a_wrong_clock_leads_and_follows(dsn: str, start: Start, fake: str) -> None:
    lease_s = 1.5
    env = {"LD_PRELOAD": faketime(), "FAKETIME": fake, "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    odd = start(lease_s, "polite", env)
    odd.wait_for("term 1")
    other = start(lease_s)
    other.wait_for("ready")
    later = time.monotonic() + 2 * lease_s
    eventually_sync(lambda: time.monotonic() > later)
    assert (odd.terms, other.terms) == ([1], [])
    killed = time.monotonic()
    odd.signal(signal.SIGKILL)
    assert took_over_s(dsn, other, killed) < lease_s + lease_s / 30 + SLACK_S
    odd = start(lease_s, "polite", env)
    odd.wait_for("ready")
    killed = time.monotonic()
    other.signal(signal.SIGKILL)
    assert took_over_s(dsn, odd, killed, term=3) < lease_s + lease_s / 30 + SLACK_S
    check_one_term_after_the_other(dsn)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_the_server_keeps_the_terms(own_server: OwnServer, mode: Any) -> None:
    server = own_server()
    app = Chancy(server.dsn(), plugins=[Leadership(lease_s=3.0)], no_default_plugins=True)
    async with app, Worker(app, queues=[]) as one, Worker(app, queues=[]) as two:
        await eventually(lambda: one.leader.leading != two.leader.leading)
        server.restart(mode)
        row = "select term from chancy.leadership_leases"
        assert ask(server.dsn(), row) == [(1,)]
        later = time.monotonic() + 3.0
        await eventually(
            lambda: time.monotonic() > later and one.leader.leading != two.leader.leading,
            timeout=15,
        )
        term = (one if one.leader.leading else two).leader.term
        assert ask(server.dsn(), row) == [(term,)]
