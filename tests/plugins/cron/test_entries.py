"""Entries of cron: changed, paused, run by hand, and written by somebody with SQL."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from typing import Any

import pytest

from chancy import Job, Plugin
from chancy.plugin.pushing import PushContext
from chancy.plugins.cron import Cron, Misfire, Overlap
from chancy.plugins.cron.firing import Firing
from chancy.plugins.metrics import Metrics
from tests.plugins.cron.clockwork import ago, clockwork, entry, pushed, ticks
from tests.support.presence import present
from tests.support.sql import ask


async def test_ticks_during_a_pause_are_not_caught_up(dsn: str) -> None:
    async with clockwork(dsn, entry(misfire=Misfire.ALL)) as clock:
        ago(dsn, "one", "5 hours")
        assert await clock.entries.pause("one")
        await clock.fire()
        assert pushed(dsn) == []
        assert await clock.entries.resume("one")
        await clock.fire()
        assert pushed(dsn) == []
        ago(dsn, "one", "1 hour")
        assert await clock.entries.resume("one")  # it is not paused: nothing is lost
        await clock.fire()
        assert len(pushed(dsn)) == 1
        for act in (clock.entries.pause, clock.entries.resume, clock.entries.remove):
            assert not await act("nobody")


async def test_another_schedule_holds_from_now_on(dsn: str) -> None:
    async with clockwork(dsn, entry(misfire=Misfire.ALL)) as clock:
        ago(dsn, "one", "5 hours")
        ((added,),) = ask(dsn, "select clock_timestamp()")
        await clock.add(entry(schedule="* * * * *", misfire=Misfire.ALL))
        await clock.fire()
        # A minute may begin at any time.
        assert all(datetime.fromisoformat(one["tick"]) > added for one in pushed(dsn))
        ask(dsn, "delete from chancy.jobs")
        # The same one with another job: what was missed is fired with the new job.
        ago(dsn, "one", "3 minutes")
        changed = entry(schedule="* * * * *", misfire=Misfire.ALL, job=entry("other").job)
        await clock.add(changed)
        await clock.fire()
        arguments = ask(dsn, "select arguments->>'value' from chancy.jobs")
        assert arguments in ([("other",)] * 3, [("other",)] * 4)


async def test_the_last_jobs_are_remembered_in_their_order(dsn: str) -> None:
    async with clockwork(dsn, entry(overlap=Overlap.SKIP)) as clock:
        ids = [await clock.entries.run("one", None) for _ in range(104)]
        ((kept,),) = ask(dsn, "select jobs from chancy.cron_entries")
        assert kept == ids[-101:]


async def test_run_now_leaves_the_ticks_alone(dsn: str) -> None:
    async with clockwork(dsn, entry(overlap=Overlap.SKIP)) as clock:
        await clock.entries.pause("one")
        before = await clock.entries.get("one")
        id = await clock.entries.run("one", None)
        assert await clock.entries.run("nobody", None) is None
        after = await clock.entries.get("one")
        assert before is not None
        assert after is not None
        assert (before.last_tick, before.next_at) == (after.last_tick, after.next_at)
        assert pushed(dsn) == [{"entry": "one", "manual": True}]
        (run,) = await clock.entries.history("one")
        assert (run.manual, run.job_id) == (True, id)
        # The tick behind it takes the job for an earlier one.
        await clock.entries.resume("one")
        ago(dsn, "one", "1 hour")
        await clock.fire()
        assert [one[:2] for one in ticks(dsn)] == [(False, "overlap")]


async def test_a_bad_row_does_not_stop_the_others(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {
        "expression": "'61 * * * *'",
        "zone": "'Europe/Nowhere'",
        "misfire": "'perhaps'",
        "overlap": "'sometimes'",
        "grace_s": "'NaN'",
        "backfill_limit": "0",
        "jitter_s": "-1",
        "from_at": "'infinity'",
        "func": "repeat('a', 3000000)",
        "arguments": "'{}'",
    }
    entries = [entry(f"bad-{name}") for name in wrong]
    async with clockwork(dsn, *entries, entry("good", misfire=Misfire.ALL)) as clock:
        for one in entries:
            ago(dsn, one.name, "2 hours")
        ago(dsn, "good", "2 hours")
        for name, value in wrong.items():
            ask(
                dsn,
                f"update chancy.cron_entries set {name} = {value} where name = 'bad-{name}'",
            )
        await clock.fire()
        assert [one["entry"] for one in pushed(dsn)].count("good") == 2
        problems = {one.name: one.problem for one in await clock.entries.every()}
        refused = {name for name, problem in problems.items() if problem}
        assert refused == {f"bad-{name}" for name in wrong if name not in ("func", "arguments")}
        assert caplog.text.count("cron_entry_invalid") == len(refused)
        # Looked at again some minutes later, without a word if nothing has changed; put right by
        # an upsert, at once.
        ask(dsn, "update chancy.cron_entries set next_at = '-infinity'")
        await clock.fire()
        assert caplog.text.count("cron_entry_invalid") == len(refused)
        await clock.add(entry("bad-zone"))
        stored = present(await clock.entries.get("bad-zone"))
        assert stored.problem is None


async def test_arguments_that_python_cannot_read_do_not_stop_the_others(dsn: str) -> None:
    async with clockwork(dsn, entry("bad"), entry("good"), plugins=[Cron(), Metrics()]) as clock:
        for name in ("bad", "good"):
            ago(dsn, name, "1 hour")
        ask(
            dsn,
            "update chancy.cron_entries set arguments = jsonb_build_object('n', repeat('1', 5000)"
            "::numeric) where name = 'bad'",
        )
        prepare = present(clock.chancy.prepare_stored)
        with closing(Firing(clock.entries, keep=100, prepare=prepare)) as firing:
            await firing.step()
        assert [one["entry"] for one in pushed(dsn)] == ["good"]
        assert ticks(dsn, "bad") == [(False, "refused", 0)]
        assert [one.name for one in await clock.entries.every()] == ["bad", "good"]


class Exiting(Plugin):
    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        if job.arguments == {"value": "bad"}:
            raise SystemExit(3)
        return job


async def test_a_plugin_that_exits_refuses_one_entry_alone(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with clockwork(dsn, entry("bad"), entry("good"), plugins=[Cron(), Exiting()]) as clock:
        for name in ("bad", "good"):
            ago(dsn, name, "1 hour")
        prepare = present(clock.chancy.prepare_stored)
        with closing(Firing(clock.entries, keep=100, prepare=prepare)) as firing:
            await firing.step()
        assert [one["entry"] for one in pushed(dsn)] == ["good"]
        assert ticks(dsn, "bad") == [(False, "refused", 0)]
        assert "cron_refused entry='bad'" in caplog.text
        assert "a plugin failed: SystemExit: 3" in caplog.text


async def test_an_entry_whose_push_fails_does_not_stop_the_others(dsn: str) -> None:
    async with clockwork(dsn, entry("bad"), entry("good")) as clock:
        ask(
            dsn,
            "alter table chancy.jobs add constraint odd check (meta->'cron'->>'entry' <> 'bad')",
        )
        for name in ("bad", "good"):
            ago(dsn, name, "1 hour")
        await clock.fire()
        assert [one["entry"] for one in pushed(dsn)] == ["good"]
        stored = present(await clock.entries.get("bad"))
        assert "odd" in (stored.problem or "")


async def test_a_trigger_refuses_a_tick_and_not_the_entry(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with clockwork(dsn, entry("bad"), entry("good")) as clock:
        ask(
            dsn,
            "create function chancy.quota() returns trigger language plpgsql as "
            "$$begin raise exception 'the quota is full'; end$$",
        )
        ask(
            dsn,
            "create trigger quota before insert on chancy.jobs for each row "
            "when (new.meta->'cron'->>'entry' = 'bad') execute function chancy.quota()",
        )
        for name in ("bad", "good"):
            ago(dsn, name, "1 hour")
        await clock.fire()
        assert [one["entry"] for one in pushed(dsn)] == ["good"]
        assert ticks(dsn, "bad") == [(False, "refused", 0)]
        due = "select count(distinct next_at), count(problem) from chancy.cron_entries"
        assert ask(dsn, due) == [(1, 0)], "both at the next tick"
    assert "cron_refused entry='bad' error=the quota is full" in caplog.text
    assert "cron_entry_invalid" not in caplog.text
