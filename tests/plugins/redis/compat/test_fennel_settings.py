"""The settings of a program of fennel, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chancy.plugins.recovery import Recovery
from chancy.plugins.redis.compat.fennel import App
from chancy.plugins.redis.compat.fennel.exceptions import FennelException
from chancy.plugins.redis.compat.fennel.worker import options_of
from chancy.plugins.retry import Retries
from chancy.retry import Fennel
from tests.plugins.redis.compat.fennel_worker import Shop


def sweep_of(app: App) -> float:
    """How often workers look for jobs of those that are gone."""
    [recovery] = [one for one in app.chancy.hooks.plugins if isinstance(one, Recovery)]
    return recovery.sweep_s


def retry_of(app: App) -> Retries:
    [retry] = [one for one in app.chancy.hooks.plugins if isinstance(one, Retries)]
    return retry


@pytest.mark.row("F23", "F31")
def test_the_policy(shop: Shop) -> None:
    assert retry_of(App("a")).policy == Fennel()
    assert retry_of(App("a")).crashes_cost_attempts, "one that kills its workers dies in the end"
    for tries in range(1, 12):
        low, high = 6 ** (tries + 1) // 3, 2 * 6 ** (tries + 1)
        for _ in range(1000):
            delay_s = Fennel().after(tries)
            assert delay_s is not None
            assert delay_s == int(delay_s)
            assert min(604_800, low) <= delay_s <= min(604_800, high - 1)


@pytest.mark.row("F02", "F18", "F35", "F44")
def test_settings(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FENNEL_CONCURRENCY", "3")
    monkeypatch.setenv("FENNEL_RESULTS_TTL", "7")
    assert [queue.concurrency for queue in App("a")().queues] == [3]
    assert App("a", concurrency=5, autodiscover="").settings.concurrency == 5
    assert App("a", interface="ASYNC").settings.results_ttl == 7
    timed = App("a", read_timeout=2_500, concurrency=3, prefetch_count=4, log_level="WARNING")
    assert [queue.poll_interval_s for queue in timed().queues] == [2.5]
    options = options_of(timed)
    assert (options.concurrency, options.prefetch_limit, options.log_level) == (3, 9, "warning")
    assert (options.shutdown_timeout, options.heartbeat, options.heartbeat_timeout) == (30, 6, 60)
    patient = App("a", grace_period=2, heartbeat_interval=2, heartbeat_timeout=3)
    options = options_of(patient)
    assert (options.shutdown_timeout, options.heartbeat, options.heartbeat_timeout) == (2, 1, 3)
    assert (timed.redis.keep_finished_s, timed.redis.keep_failed_s) == (7, 315_360_000)
    assert options_of(App("a")).prefetch_limit is None, "its pace says it"
    assert sweep_of(App("a")) == 8
    assert sweep_of(App("a", maintenance_interval=2.5)) == 2.5
    assert sweep_of(App("a", maintenance_interval=0)) == 0.1, "not all the time"
    with pytest.warns(UserWarning, match=r"schedule_interval=0\.5 has no effect") as warned:
        App("a", schedule_interval=0.5)
    assert [one.filename for one in warned] == [__file__]
    for wrong in (
        {"interface": "x"},
        {"log_format": "x"},
        {"log_level": "x"},
        {"autodiscover": "tasks.txt"},
    ):
        with pytest.raises(FennelException, match="the settings of fennel"):
            App("a", **wrong)
    with pytest.raises(FennelException, match="no_such"):
        App("a", retry_backoff="tests.plugins.redis.compat.fennel_shop.no_such", autodiscover="")()
