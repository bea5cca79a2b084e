"""Cron in an application: beside workers, in a deployment, and by the contract of plugins."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, Job, Plugin, Queue, State, Unique, Worker
from chancy.errors import ConfigurationError, PushError
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.cron.firing import Firing
from chancy.plugins.cron.store import MAX_ENTRIES
from chancy.testing.memory import MemoryBroker
from tests.contract.plugin.test_plugin import OnTables
from tests.docs.pages import page
from tests.plugins.cron.clockwork import EVERY_SECOND, ago, entry, hourly, pushed
from tests.support import jobs, typed_jobs
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

ASYNC = Queue(name="async", executor="async")


class TestCron(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Cron(entry())


def names(dsn: str) -> list[str]:
    return [row[0] for row in ask(dsn, "select name from chancy.cron_entries order by name")]


async def test_a_worker_stores_its_entries_and_runs_their_jobs(dsn: str) -> None:
    jobs.noted.clear()
    cron = Cron(entry("each", EVERY_SECOND), entry("seldom"))
    async with Chancy(dsn, plugins=[cron], queues=[ASYNC]) as chancy:
        async with Worker(chancy, queues=["async"]):
            await eventually(lambda: len(jobs.noted) >= 2)
        assert names(dsn) == ["each", "seldom"]
        fired = [one for one in await cron.history(chancy, "each") if one.job_id]
        assert fired[-1].job_id is not None
        done = await chancy.get_job(fired[-1].job_id)
    assert done is not None
    assert (done.state, done.meta["cron"]["entry"]) == (State.SUCCEEDED, "each")
    late_s = [(one.fired_at - one.tick).total_seconds() for one in fired]
    # A busy machine may fire some of them late.
    assert 0 <= min(late_s) < 1


async def test_changes_at_run_time_apply_within_seconds(dsn: str) -> None:
    """A worker that does not lead looks every half minute."""
    cron, took_s = Cron(), list[float]()

    async def soon(found: Callable[[], Coroutine[Any, Any, object]]) -> Any:
        began = time.monotonic()
        result = await eventually(found, timeout=20)
        took_s.append(time.monotonic() - began)
        return result

    async with Chancy(dsn, plugins=[cron]) as chancy, Worker(chancy, queues=[]):

        def fired(name: str) -> Callable[[], Coroutine[Any, Any, object]]:
            async def ask() -> object:
                return await cron.history(chancy, name)

            return ask

        assert await cron.add(chancy, entry("new", EVERY_SECOND))
        await soon(fired("new"))
        assert not await cron.add(chancy, entry("new", "0 0 1 1 *"))
        assert await cron.add(chancy, entry("new", "0 0 1 1 *"), upsert=True)
        stored = await soon(lambda: looked_at(cron, chancy, "new"))
        assert stored.schedule == "0 0 1 1 *"
        assert await cron.add(chancy, entry("new", EVERY_SECOND), upsert=True)
        assert await cron.pause(chancy, "new")
        paused = present(await cron.get(chancy, "new"))
        assert paused.paused_at is not None
        assert await cron.resume(chancy, "new")
        before = len(await cron.history(chancy, "new"))

        async def more() -> bool:
            return len(await cron.history(chancy, "new")) > before

        await soon(more)
        assert sorted(took_s)[1] < 4  # a busy machine delays one, and not most of them
        assert await cron.remove(chancy, "new")
        assert await cron.get_all(chancy) == []


async def looked_at(cron: Cron, chancy: Chancy, name: str) -> Any:
    """The entry, once its next tick has been worked out."""
    found = await cron.get(chancy, name)
    return found if found and found.next_at else None


async def started(dsn: str, cron: Cron) -> None:
    """Let a worker with these entries start and end."""
    chancy = Chancy(dsn, plugins=[cron], no_default_plugins=True)
    async with chancy, Worker(chancy, queues=[]):
        await eventually(lambda: {one.name for one in cron.entries} <= set(names(dsn)))


async def test_a_deployment_takes_entries_over_and_the_old_ones_lapse(dsn: str) -> None:
    same = hourly()  # the next minute has another one
    old = Cron(entry("both", same), entry("gone"), lapse_s=4)
    new = Cron(entry("both", same, job=entry("other").job), entry("added"))
    ticks = "select last_tick from chancy.cron_entries where name = 'both'"
    value = "select arguments->>'value' from chancy.cron_entries where name = 'both'"
    async with (
        Chancy(dsn, plugins=[old], no_default_plugins=True) as chancy,
        Worker(chancy, queues=[]),
    ):
        await eventually(lambda: names(dsn) == ["both", "gone"])
        ask(dsn, "update chancy.cron_entries set paused_at = now() where name = 'both'")
        ago(dsn, "both", "3 hours")
        before = ask(dsn, ticks)
        await started(dsn, new)
        assert names(dsn) == ["added", "both", "gone"]
        stored = ask(
            dsn,
            "select arguments->>'value', paused_at is not null from chancy.cron_entries"
            " where name = 'both'",
        )
        assert stored == [("other", True)]
        assert ask(dsn, ticks) == before
        # The old one is still alive, and says what is in its code: it does not take "both" back.
        ask(dsn, "update chancy.cron_entries set lapses_at = now()")
        soon = "select min(lapses_at) > now() + interval '2 s' from chancy.cron_entries "
        await eventually(lambda: ask(dsn, soon + "where name in ('both', 'gone')") == [(True,)])
        assert ask(dsn, value) == [("other",)]
    # It has been gone for longer than it outlives its workers.
    ask(dsn, "update chancy.cron_entries set lapses_at = now() where name = 'gone'")
    ago(dsn, "gone", "1 hour")
    ago(dsn, "added", "1 hour")
    async with Chancy(dsn, plugins=[new], no_default_plugins=True) as chancy:
        async with Worker(chancy, queues=[]):
            await eventually(lambda: pushed(dsn))
        assert [one["entry"] for one in pushed(dsn)] == ["added"]
        sources = {one.name: one.source for one in await new.get_all(chancy)}
    assert sources == {"added": "code", "both": "code", "gone": "lapsed"}


async def test_a_locked_entry_keeps_no_others_from_being_stored_and_fired(dsn: str) -> None:
    await started(dsn, Cron(entry("locked")))
    cron = Cron(entry("locked", EVERY_SECOND), entry("other", EVERY_SECOND), lapse_s=1)
    app = Chancy(dsn, plugins=[cron], no_default_plugins=True)
    with psycopg.connect(dsn) as holder:
        ask(holder, "select from chancy.cron_entries where name = 'locked' for update")
        async with app, Worker(app, queues=[]):
            await eventually(lambda: pushed(dsn))
            assert {one["entry"] for one in pushed(dsn)} == {"other"}
            holder.rollback()
            await eventually(lambda: "locked" in {one["entry"] for one in pushed(dsn)})


async def test_an_entry_of_a_live_worker_does_not_lapse_when_the_server_clock_changes(
    dsn: str,
) -> None:
    """The clock of the server is put forward by hours, or both were suspended."""
    cron = Cron(entry("mine"))
    app = Chancy(dsn, plugins=[cron], no_default_plugins=True)
    async with app, Worker(app, queues=[]):
        await eventually(lambda: names(dsn) == ["mine"])
        ask(dsn, "update chancy.cron_entries set lapses_at = now() - interval '2 h'")
        ago(dsn, "mine", "1 hour")
        await eventually(lambda: pushed(dsn))


async def test_a_removed_entry_stays_away_until_a_worker_starts_with_it(dsn: str) -> None:
    cron = Cron(entry(), lapse_s=1.0)
    chancy = Chancy(dsn, plugins=[cron], no_default_plugins=True)
    async with chancy, Worker(chancy, queues=[]):
        await eventually(lambda: names(dsn))
        await cron.remove(chancy, "one")
        await cron.add(chancy, entry("two", EVERY_SECOND))
        await eventually(lambda: len(pushed(dsn)) >= 2)
        assert names(dsn) == ["two"]
    await started(dsn, Cron(entry()))
    assert names(dsn) == ["one", "two"]


async def test_each_worker_stores_the_entries_of_a_plugin_that_several_share(dsn: str) -> None:
    cron = Cron(entry())
    await started(dsn, cron)
    chancy = Chancy(dsn, plugins=[cron], no_default_plugins=True)
    async with chancy:
        assert await cron.remove(chancy, "one")
    await started(dsn, cron)
    assert names(dsn) == ["one"]


async def test_applications_on_two_databases_fire_the_ticks_of_one_plugin(
    dsn: str, empty_dsn: str
) -> None:
    cron = Cron(entry("each", EVERY_SECOND))
    async with (
        Chancy(dsn, plugins=[cron], no_default_plugins=True) as first,
        Chancy(empty_dsn, plugins=[cron], no_default_plugins=True) as second,
    ):
        await second.migrate()
        async with Worker(first, queues=[]):
            await eventually(lambda: pushed(dsn))
            async with Worker(second, queues=[]):
                await eventually(lambda: pushed(empty_dsn))


async def test_a_worker_whose_service_failed_does_not_store_its_entries_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed entry, or one that a newer worker has changed, stays as it is."""
    failures = 0
    original = Firing.step

    async def step(self: Firing) -> float:
        nonlocal failures
        if names(dsn) == ["two"] and failures == 0:
            failures += 1
            raise RuntimeError("once")
        return await original(self)

    monkeypatch.setattr(Firing, "step", step)
    cron = Cron(entry())
    chancy = Chancy(dsn, plugins=[cron], no_default_plugins=True)
    async with chancy, Worker(chancy, queues=[]):
        await eventually(lambda: names(dsn) == ["one"])
        await cron.remove(chancy, "one")
        await cron.add(chancy, entry("two", EVERY_SECOND))
        await eventually(lambda: pushed(dsn))
        assert failures == 1
        assert names(dsn) == ["two"]


async def test_without_postgres_it_does_nothing_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cron = Cron(entry("each", EVERY_SECOND))
    chancy = Chancy(broker=MemoryBroker(), plugins=[cron], no_default_plugins=True)
    async with chancy, Worker(chancy, queues=[]):
        await eventually(lambda: "cron_without_tables" in caplog.text)
        with pytest.raises(ConfigurationError, match="MemoryBroker does not offer SQL"):
            await cron.add(chancy, entry())
    assert caplog.text.count("cron_without_tables") == 1
    assert "worker_loop_failed" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "a b"}, "'a b' is not a valid name of a cron entry"),
        ({"schedule": "61 * * * *"}, r"cron entry 'one': '61 \* \* \* \*' is not a schedule"),
        ({"zone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'"),
        ({"misfire": "never"}, "misfire='never' must be one of 'skip', 'one', 'all'"),
        ({"overlap": 7}, "overlap=7 must be one of 'allow', 'skip'"),
        ({"grace_s": -1}, "grace_s=-1 must be a number from 0 to 86,400 seconds"),
        ({"jitter_s": float("nan")}, "jitter_s=nan must be"),
        ({"backfill_limit": 1_001}, "backfill_limit=1001 must be a whole number from 1 to 1,000"),
        ({"job": jobs.note}, "is not a Job"),
        ({"job": Job(func="nothing")}, "'nothing' is not the path of a function"),
        ({"job": Job(func="a.b", queue="a b")}, "is not a valid queue name"),
        ({"job": Job(func="a.b", priority=101)}, "priority=101 must be"),
        ({"job": Job(func="a.b", max_attempts=0)}, "max_attempts=0 must be"),
        ({"job": Job(func="a.b").with_delay(5)}, "run_at=.*each tick pushes a new job"),
        ({"job": jobs.note.job(1).with_unique(Unique(key="k"))}, "ticks do not apply unique rules"),
        ({"job": Job(func="a.b", limits=("x",))}, "is not a Limit"),  # type: ignore[arg-type]
    ],
)
def test_an_entry_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        entry(**changes)


def test_arguments_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(PushError, match=r"the arguments of a\.b.*no type"):
        Entry("one", "@daily", Job(func="a.b", arguments={"x": object()}))


def test_arguments_of_typed_functions_are_stored_by_their_annotations() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    made = Entry("one", "@daily", typed_jobs.later.job(at, timedelta(days=1)))
    assert '{"at":"2030-01-01T00:00:00Z","within":"P1D"}' in made.parameters()
    with pytest.raises(PushError, match=r"later: parameter 'at': .* not datetime\.date"):
        Entry("one", "@daily", typed_jobs.later.job(at.date(), timedelta(days=1)))  # type: ignore[arg-type]


async def test_a_function_that_is_not_there_is_refused(dsn: str) -> None:
    cron = Cron()
    job = Job(func="tests.support.jobs.nothing")
    async with Chancy(dsn, plugins=[cron]) as chancy:
        with pytest.raises(PushError, match="no function 'nothing'"):
            await cron.add(chancy, entry(job=job))
        assert names(dsn) == []
        assert await cron.add(chancy, entry(job=job), validate=False)


async def test_there_are_only_so_many_entries(dsn: str) -> None:
    cron = Cron()
    ask(
        dsn,
        "insert into chancy.cron_entries (name, expression, func)"
        " select 'e' || n, '@daily', 'a.b' from generate_series(1, %s) as n",
        [MAX_ENTRIES],
    )
    async with Chancy(dsn, plugins=[cron]) as chancy:
        with pytest.raises(ConfigurationError, match="already 10,000 entries"):
            await cron.add(chancy, entry())
        assert await cron.add(chancy, entry("e7"), upsert=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"poll_s": 0}, "poll_s=0 must be"),
        ({"keep_ticks": 0}, "keep_ticks=0 must be"),
        ({"lapse_s": 0.5}, "lapse_s=0.5 must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Cron(**given)


def test_two_entries_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two cron entries have the name 'one'"):
        Cron(entry(), entry())
    with pytest.raises(ConfigurationError, match="is not an Entry"):
        Cron("report")  # type: ignore[arg-type]


def test_the_guide_has_every_parameter_of_an_entry() -> None:
    guide = page("docs/guides/cron.md")
    fields = [cell.strip("`") for cell in guide.column("Parameters of an entry")]
    assert fields == list(Entry.__dataclass_fields__)
