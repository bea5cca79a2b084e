"""Replays that are killed in their middle, or run in several processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.faults.worker_process import ROOT
from tests.plugins.dead_letter.letters import execute, letters
from tests.support.command import Started, command, started
from tests.support.locks import BLOCKED
from tests.support.waiting import eventually_sync

_WAITING = f"select pid from pg_stat_activity where {BLOCKED} and query like '%%dead_letters%%'"


class Replays:
    """Processes of ``chancy dead replay --all``."""

    def __init__(self, dsn: str, folder: Path, stack: ExitStack) -> None:
        self._env = {"CHANCY_DSN": dsn, "PYTHONPATH": str(ROOT)}
        self._folder = folder
        self._stack = stack

    def begin(self) -> Started:
        program = command("dead", "replay", "--all", "--json")
        return self._stack.enter_context(started(program, cwd=self._folder, env=self._env))

    def end(self, one: Started) -> int:
        """How many it says it has replayed."""
        assert one.process.wait(60) == 0, one.log
        said: dict[str, Any] = json.loads(one.log.strip().splitlines()[-1])
        return int(said["replayed"])


@pytest.fixture
def replays(dsn: str, tmp_path: Path) -> Iterator[Replays]:
    with ExitStack() as stack:
        yield Replays(dsn, tmp_path, stack)


def check_once(dsn: str, ids: list[UUID]) -> None:
    """Each letter has one job, and both say so."""
    jobs = execute(dsn, "select (meta->'dead_letters'->>'replay_of')::uuid, id from chancy.jobs")
    marked = execute(dsn, "select id, replayed_as from chancy.dead_letters where replays = 1")
    assert len(jobs) == len(ids)
    assert sorted(jobs) == sorted(marked)
    assert {row[0] for row in jobs} == set(ids)


@pytest.mark.chaos
def test_a_replay_that_is_killed_in_its_middle_replays_each_dead_letter_once(
    dsn: str, replays: Replays
) -> None:
    ids = letters(dsn, 5_000)
    with psycopg.connect(dsn) as holder:
        # In the fifth batch: it stops there, in the middle of its statement.
        holder.execute(
            "select 1 from chancy.dead_letters where id ="
            " (select id from chancy.dead_letters order by died_at, id offset 2300 limit 1)"
            " for update"
        )
        killed = replays.begin()
        eventually_sync(lambda: execute(dsn, _WAITING), timeout=30)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait(10)
        ((count,),) = execute(dsn, "select count(*) from chancy.jobs")
        assert count == 2_000
    # Its last statement may be done yet, now that it can, or be not.
    others = (
        "select 1 from pg_stat_activity where datname = current_database()"
        " and application_name like 'chancy%%'"
    )
    eventually_sync(lambda: not execute(dsn, others), timeout=30)
    ((count,),) = execute(dsn, "select count(*) from chancy.jobs")
    assert count in (2_000, 2_500)
    assert replays.end(replays.begin()) == 5_000 - count
    check_once(dsn, ids)


@pytest.mark.chaos
def test_replays_that_are_killed_again_and_again_lose_and_repeat_nothing(
    dsn: str, replays: Replays
) -> None:
    ids = letters(dsn, 5_000)
    for kill_at in (1, 1_500, 3_000):
        one = replays.begin()

        def so_many(least: int = kill_at) -> bool:
            ((count,),) = execute(dsn, "select count(*) from chancy.jobs")
            return int(count) >= least

        eventually_sync(so_many, timeout=30)
        one.process.kill()
        one.process.wait(10)
    replays.end(replays.begin())
    check_once(dsn, ids)


@pytest.mark.chaos
def test_two_processes_that_replay_at_once_replay_each_dead_letter_once(
    dsn: str, replays: Replays
) -> None:
    ids = letters(dsn, 3_000)
    with psycopg.connect(dsn) as holder:
        holder.execute("lock table chancy.jobs")
        both = [replays.begin(), replays.begin()]
        # Both have their first batch before them.
        eventually_sync(lambda: len(execute(dsn, _WAITING)) == 2, timeout=30)
    assert sum(replays.end(one) for one in both) == 3_000
    check_once(dsn, ids)
