"""Replays that are killed in their middle."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest

from tests.faults.worker_process import ROOT
from tests.plugins.dead_letter.letters import letters
from tests.support.command import alone, command, started
from tests.support.locks import BLOCKED
from tests.support.sql import ask, count
from tests.support.waiting import eventually_sync

_WAITING = f"select pid from pg_stat_activity where {BLOCKED} and query like '%dead_letters%'"
#: Its last statement may be done yet, now that it can, or be not.
_AT_WORK = (
    "select 1 from pg_stat_activity where datname = current_database()"
    " and application_name like 'chancy%'"
)


@pytest.mark.chaos
def test_a_replay_that_is_killed_in_its_middle_replays_each_dead_letter_once(
    dsn: str, tmp_path: Path
) -> None:
    ids = letters(dsn, 5_000)
    replay = command("dead", "replay", "--all")
    env = {"CHANCY_DSN": dsn, "PYTHONPATH": str(ROOT)}
    with psycopg.connect(dsn) as holder, started(replay, cwd=tmp_path, env=env) as killed:
        # In the fifth batch: it stops there, in the middle of its statement.
        holder.execute(
            "select 1 from chancy.dead_letters where id ="
            " (select id from chancy.dead_letters order by died_at, id offset 2300 limit 1)"
            " for update"
        )
        eventually_sync(lambda: ask(dsn, _WAITING), timeout=30)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait(10)
        assert count(dsn) == 2_000
    eventually_sync(lambda: not ask(dsn, _AT_WORK), timeout=30)
    done = count(dsn)
    assert done in (2_000, 2_500)
    again = alone("dead", "replay", "--all", "--json", cwd=tmp_path, env=env)
    assert again.json["replayed"] == 5_000 - done
    # Each letter has one job, and both say so.
    jobs = ask(dsn, "select (meta->'dead_letters'->>'replay_of')::uuid, id from chancy.jobs")
    marked = ask(dsn, "select id, replayed_as from chancy.dead_letters where replays = 1")
    assert sorted(jobs) == sorted(marked)
    assert {row[0] for row in jobs} == set(ids)
    assert len(jobs) == len(ids)
