"""`@periodic`: entries of decorated functions, without a list of plugins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from chancy import Chancy, Queue, Unique, Worker, job
from chancy.errors import ConfigurationError, InvalidArguments
from chancy.plugins.cron import Cron, Entry, decorated, periodic
from chancy.plugins.cron.decorated import periodic_entries
from tests.plugins.cron.clockwork import EVERY_SECOND
from tests.support.sql import ask
from tests.support.waiting import eventually

ASYNC = Queue(name="async", executor="async")
ran: list[int] = []


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decorated, "_MADE", {})


async def ping(number: int = 0) -> None:
    ran.append(number)


async def other() -> None: ...


@pytest.mark.parametrize("above", [True, False])
def test_the_entry_has_the_settings_of_the_job_in_either_order(*, above: bool) -> None:
    as_job, as_entry = job(queue="async", priority=7), periodic("0 3 * * *", zone="Europe/Berlin")
    if above:
        as_entry(as_job(ping))
    else:
        as_job(as_entry(ping))
    (entry,) = periodic_entries().values()
    assert entry.name == entry.job.func == "tests.plugins.cron.test_periodic.ping"
    assert (entry.job.queue, entry.job.priority, entry.zone) == ("async", 7, "Europe/Berlin")


def test_a_function_may_have_two_schedules_with_different_names() -> None:
    periodic("@hourly")(ping)
    periodic("@daily", name="daily", arguments={"number": 2})(ping)
    periodic("@hourly")(ping)  # as a module that is imported again does
    assert periodic_entries()["daily"].job.arguments == {"number": 2}
    assert len(periodic_entries()) == 2
    with pytest.raises(ConfigurationError, match=r"two cron entries .*pass a different name="):
        periodic("@daily")(ping)
    with pytest.raises(ConfigurationError, match="cron entry 'x'"):
        periodic("every day", name="x")(ping)
    with pytest.raises(InvalidArguments, match="other"):
        periodic("@daily", name="y", arguments={"other": 1})(ping)


@pytest.mark.parametrize("setting", [{"unique": Unique()}, {"expires_at": timedelta(hours=1)}])
def test_a_setting_that_no_entry_may_have_refuses_its_own_alone(
    setting: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    job(**setting)(periodic("@hourly", name="bad")(job()(other)))
    periodic("@hourly", name="good")(ping)
    assert [*periodic_entries()] == ["good"]
    assert "cron_entry_refused entry=bad: cron entry 'bad': job" in caplog.text


async def test_a_default_worker_runs_a_periodic_function(dsn: str) -> None:
    ran.clear()
    periodic(EVERY_SECOND, arguments={"number": 5})(job(queue="async")(ping))
    periodic(EVERY_SECOND, name="replaced", arguments={"number": 6})(ping)
    async with Chancy(dsn, queues=[ASYNC]) as chancy, Worker(chancy, queues=["async"]):
        await eventually(lambda: {*ran} == {5, 6})
    mine = Cron(Entry("replaced", "0 0 1 1 *", ping.job(number=7)))  # type: ignore[attr-defined]
    async with Chancy(dsn, queues=[ASYNC], plugins=[mine]) as chancy, Worker(chancy, queues=[]):
        query = "select expression from chancy.cron_entries where name = 'replaced'"
        await eventually(lambda: ask(dsn, query) == [("0 0 1 1 *",)])
