"""Which broker has the jobs of a queue, as far as a process knows."""

from __future__ import annotations

import pytest

from chancy.errors import ConfigurationError
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.placement import FRESH_S, QueuePlacement, check_move

FAR = Queue(name="far", broker="memory")
NEAR = Queue(name="far")


def test_the_stored_row_overrides_the_application() -> None:
    placement = QueuePlacement([FAR], ["memory"])
    assert placement.of("far") == "memory"
    assert placement.of("unknown") == DEFAULT_BROKER
    placement.update([NEAR, Queue(name="other", broker="memory")], 0.0)
    assert placement.of("far") == DEFAULT_BROKER
    assert placement.of("other") == "memory"
    placement.update([], 0.0)
    assert placement.of("far") == "memory", "it has no row yet"


def test_a_broker_that_is_not_here_gets_nothing() -> None:
    placement = QueuePlacement([], ["memory"])
    placement.update([Queue(name="far", broker="redis")], 0.0)
    assert placement.of("far") == DEFAULT_BROKER


def test_rows_are_believed_for_a_while() -> None:
    placement = QueuePlacement([FAR], ["memory"])
    assert (placement.fresh(0.0), placement.read) == (False, False)
    assert placement.own("far")
    assert not placement.own("near")
    placement.update([], 10.0)
    assert (placement.fresh(10.0 + FRESH_S - 0.1), placement.read) == (True, True)
    assert not placement.fresh(10.0 + FRESH_S)


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
    [(None, "are unknown: keep its broker"), (1_200, "with 1,200 unfinished jobs")],
)
def test_a_queue_may_not_leave_jobs_behind(live: int | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_move([FAR], NEAR, live)
