"""Where claims start: hints, the trail behind them, and scans from the front."""

from __future__ import annotations

import uuid

import pytest

from chancy.attempt.claim import Claim
from chancy.postgres.claim.hints import ClaimHints, CommittedPosition
from tests.support.presence import present

LEASE = uuid.uuid4()
QUICK_S, SLOW_S = 0.001, 1.0


def claims(*positions: int, priority: int = 0) -> list[Claim]:
    return [
        Claim(uuid.uuid4(), LEASE, LEASE, "q", "a.b", None, 1, 1, 0, priority, position, None)
        for position in positions
    ]


def learned(*found: Claim, took_s: float = QUICK_S, full: bool = False) -> ClaimHints:
    """The hints after a scan from the front at 0.0 seconds that found these jobs."""
    made = ClaimHints()
    made.learn_front(found, full=full, now=0.0, took_s=took_s)
    return made


def without_front_scans(*found: Claim) -> ClaimHints:
    """The hints after two slow scans, which put the next one off."""
    made = learned(*found, took_s=SLOW_S)
    made.learn_front(found, full=False, now=0.0, took_s=SLOW_S)
    return made


def test_first_claim_is_from_the_front() -> None:
    assert ClaimHints().plan(1.0, thorough=False) is None


def test_claim_starts_behind_the_last_one_in_each_priority() -> None:
    made = learned(*claims(3, priority=5), *claims(7, 9, 8))
    assert made.plan(0.01, thorough=False) == ([5, 0], [3, 9])
    made.learn(claims(4, priority=6), full=False, took_s=QUICK_S)
    assert made.plan(0.01, thorough=False) == ([6, 5, 0], [4, 3, 9])
    assert made.plan(0.01, thorough=True) is None


def test_worker_that_keeps_up_starts_where_its_hints_were_a_while_ago() -> None:
    made = without_front_scans(*claims(0))
    claimed_at = {0: 0.0}
    for step in range(1, 40):
        now = step * 0.01
        plan = present(made.plan(now, thorough=False))
        age_s = now - claimed_at[plan[1][0]]
        # Before the second snapshot of the hints there is nothing to go back to.
        assert step <= 10 or 0.045 <= age_s <= 0.125, (step, age_s)
        made.learn(claims(step), full=False, took_s=QUICK_S)
        claimed_at[step] = now


def test_worker_with_a_backlog_starts_at_its_hints() -> None:
    made = without_front_scans(*claims(10))
    for step in range(1, 9):
        made.learn(claims(10 + step), full=True, took_s=QUICK_S)
        assert made.plan(step * 0.03, thorough=False) == ([0], [10 + step])


@pytest.mark.parametrize(
    ("took_s", "pause_s"), [(0.0001, 0.02), (0.001, 0.05), (0.01, 0.5), (0.02, 2.0), (0.06, 15.0)]
)
def test_slower_front_scans_take_a_smaller_share_of_the_time(took_s: float, pause_s: float) -> None:
    made = learned(*claims(1), took_s=took_s)
    made.learn_front(claims(2), full=False, now=0.0, took_s=took_s)
    assert made.plan(pause_s * 0.99, thorough=False) is not None
    assert made.plan(pause_s * 1.01, thorough=False) is None


def test_one_slow_front_scan_does_not_put_off_the_next() -> None:
    made = learned(*claims(1), took_s=0.001)
    made.learn_front(claims(2), full=False, now=0.0, took_s=SLOW_S)
    assert made.plan(0.049, thorough=False) is not None
    assert made.plan(0.051, thorough=False) is None


def test_full_front_scan_resets_the_hints_of_priorities_that_it_did_not_finish() -> None:
    """Jobs before the old hints may have been released in all of them."""
    made = learned(*claims(60, priority=9), *claims(50, priority=1), *claims(40))
    made.learn_front(
        [*claims(7, priority=9), *claims(3, 4, priority=1)], full=True, now=0.0, took_s=QUICK_S
    )
    assert made.plan(0.0, thorough=False) == ([9, 1], [60, 4])


def test_slow_claim_adds_hints_for_every_priority_at_a_position_known_before() -> None:
    made = without_front_scans(*claims(10))
    made.learn([], full=False, took_s=SLOW_S)
    assert made.needs_last
    made.learn_last(1_000)
    plans = []
    for now in (1.0, 1.06, 1.12):
        plans.append(made.plan(now, thorough=False))
        made.learn([], full=False, took_s=SLOW_S)
        made.learn_last(2_000)
    # Jobs up to a position that is known only now may still be committed.
    assert plans[:2] == [([0], [10])] * 2
    assert plans[2] == ([*range(100, -101, -1)], [*[1_000] * 100, 10, *[1_000] * 100])


def test_claims_of_jobs_tell_the_position_of_new_hints() -> None:
    made = without_front_scans(*claims(10))
    for now in (1.0, 1.06):
        made.plan(now, thorough=False)
    made.learn(claims(500, priority=3), full=False, took_s=SLOW_S)
    assert not made.needs_last
    plan = present(made.plan(1.06, thorough=False))
    assert dict(zip(*plan, strict=True)) == {
        **dict.fromkeys(range(-100, 101), 10),
        3: 500,
    }


def test_one_slow_claim_adds_no_hints() -> None:
    made = learned(*claims(10))
    for now in (0.01, 0.07, 0.13):
        made.plan(now, thorough=True)
    made.learn([], full=False, took_s=SLOW_S)
    assert not made.needs_last
    made.learn([], full=False, took_s=QUICK_S)
    made.learn([], full=False, took_s=SLOW_S)
    assert made.plan(0.01, thorough=False) == ([0], [10])


def test_slow_full_claim_adds_hints_only_for_higher_priorities() -> None:
    made = without_front_scans(*claims(10))
    made.learn_last(1_000)
    for now in (1.0, 1.06):
        made.plan(now, thorough=False)
    made.learn(claims(500), full=True, took_s=SLOW_S)
    plan = made.plan(1.06, thorough=False)
    assert plan == ([*range(100, -1, -1)], [*[1_000] * 100, 500])


def test_time_for_many_jobs_does_not_count_as_slow() -> None:
    made = without_front_scans(*claims(10))
    for now in (1.0, 1.06):
        made.plan(now, thorough=False)
    made.learn(claims(*range(1_000)), full=True, took_s=0.02)
    assert made.plan(1.06, thorough=False) == ([0], [999])


def test_quick_front_scan_removes_a_great_number_of_hints() -> None:
    made = ClaimHints()
    for priority in range(20):
        made.learn(claims(7, priority=priority), full=False, took_s=QUICK_S)
    made.learn_front(claims(8), full=False, now=0.0, took_s=QUICK_S)
    assert made.plan(0.0, thorough=False) == ([0], [8])


def test_number_of_hints_is_limited() -> None:
    made = learned()
    for priority in range(5_000):
        made.learn(claims(7, priority=priority), full=False, took_s=QUICK_S)
    plan = present(made.plan(0.0, thorough=False))
    assert len(plan[0]) <= 1_000


def test_position_is_committed_once_transactions_of_its_time_have_ended() -> None:
    made = CommittedPosition()
    front = made.position
    # The last position, the oldest transaction in progress, the next one.
    made.sample(10, 100, 100, now=0.0)
    made.sample(20, 100, 103, now=1.0)
    made.sample(30, 102, 105, now=2.0)
    assert made.position == front
    made.sample(40, 103, 107, now=3.0)
    assert made.position == 10
    # The first sample after 30 was drawn saw 107 as the next one.
    made.sample(50, 106, 110, now=4.0)
    assert made.position == 10
    made.sample(60, 107, 120, now=5.0)
    assert made.position == 30
    assert not made.due(5.4)
    assert made.due(5.6)


def with_short_scans() -> ClaimHints:
    """The hints after a complete slow scan, which found all jobs up to position 50."""
    made = without_front_scans(*claims(100, priority=5), *claims(90))
    for step in range(3):
        made.sample(50, step, step, now=1.0 + step)
    # At once, since short scans are possible after it: otherwise 15 s later.
    assert made.plan(4.0, thorough=False) is None
    made.learn_front([], full=False, now=4.0, took_s=SLOW_S)
    return made


def test_short_scans_start_where_everything_was_claimed_and_are_rare() -> None:
    made = with_short_scans()
    assert made.plan(5.0, thorough=False) == ([5, 0], [50, 50])
    made.learn([], full=False, took_s=0.001)
    assert made.plan(5.019, thorough=False) == ([5, 0], [100, 90])
    made.learn([], full=False, took_s=0.001)
    assert made.plan(5.022, thorough=False) == ([5, 0], [50, 50])
    made.sample(60, 9, 9, now=5.03)
    assert made.plan(5.04, thorough=False) is not None


def test_short_scan_that_leaves_jobs_is_continued_behind_the_claimed_ones() -> None:
    made = with_short_scans()
    assert made.plan(5.0, thorough=False) == ([5, 0], [50, 50])
    made.learn(claims(60, 61), full=True, took_s=QUICK_S)
    assert made.plan(5.01, thorough=False) == ([5, 0], [100, 61])
    made = with_short_scans()
    made.plan(5.0, thorough=False)
    made.learn(claims(70, 71, priority=5), full=True, took_s=QUICK_S)
    assert made.plan(5.01, thorough=False) == ([5, 0], [71, 50])


def test_quick_scans_from_the_front_need_no_short_ones() -> None:
    made = with_short_scans()
    made.learn_last(100)
    made.learn_front([], full=False, now=5.0, took_s=QUICK_S)
    assert not made.sample_due(1_000.0)
    assert made.plan(5.01, thorough=False) == ([5, 0], [100, 90])
