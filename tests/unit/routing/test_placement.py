"""Which broker has the jobs of a queue, as far as a process knows."""

from __future__ import annotations

import pytest

from chancy.errors import ConfigurationError
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.placement import FRESH_S, QueuePlacement, check_move

FAR = Queue(name="far", broker="memory")
NEAR = Queue(name="far")


def test_the_row_goes_before_what_the_application_says() -> None:
    homes = QueuePlacement([FAR], ["memory"])
    assert homes.of("far") == "memory"
    assert homes.of("unknown") == DEFAULT_BROKER
    homes.learn([NEAR, Queue(name="other", broker="memory")], 0.0)
    assert homes.of("far") == DEFAULT_BROKER
    assert homes.of("other") == "memory"
    homes.learn([], 0.0)
    assert homes.of("far") == "memory", "it has no row yet"


def test_a_broker_that_is_not_here_gets_nothing() -> None:
    homes = QueuePlacement([], ["memory"])
    homes.learn([Queue(name="far", broker="redis")], 0.0)
    assert homes.of("far") == DEFAULT_BROKER


def test_rows_are_believed_for_a_while() -> None:
    homes = QueuePlacement([FAR], ["memory"])
    assert (homes.fresh(0.0), homes.read) == (False, False)
    assert homes.own("far")
    assert not homes.own("near")
    homes.learn([], 10.0)
    assert (homes.fresh(10.0 + FRESH_S - 0.1), homes.read) == (True, True)
    assert not homes.fresh(10.0 + FRESH_S)


@pytest.mark.parametrize(
    ("standing", "wanted", "live"),
    [
        ([], FAR, None),
        ([FAR], FAR, None),
        ([FAR], NEAR, 0),
        ([NEAR], FAR, None),
        ([Queue(name="other", broker="redis")], FAR, None),
    ],
)
def test_a_queue_may_move(standing: list[Queue], wanted: Queue, live: int | None) -> None:
    check_move(standing, wanted, live)


@pytest.mark.parametrize(
    ("live", "said"),
    [(None, "cannot be seen: leave its broker"), (1_200, "and 1,200 unfinished jobs there")],
)
def test_a_queue_may_not_leave_jobs_behind(live: int | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_move([FAR], NEAR, live)
