"""How far claims look: hints, what trails behind them, and looks from the front."""

from __future__ import annotations

import uuid

from chancy.attempt.claim import Claim
from chancy.postgres.claim.hints import ClaimHints

LEASE = uuid.uuid4()


def claims(*positions: int, priority: int = 0) -> list[Claim]:
    return [
        Claim(uuid.uuid4(), LEASE, LEASE, "q", "a.b", None, 1, 1, 0, priority, position, None)
        for position in positions
    ]


def lanes(*positions: int, priority: int = 0, took_s: float = 0.001) -> ClaimHints:
    """Lanes that have looked from the front at 0.0 seconds."""
    made = ClaimHints()
    made.learn_front(claims(*positions, priority=priority), limit=100, now=0.0, took_s=took_s)
    return made


def test_the_first_look_is_from_the_front() -> None:
    assert ClaimHints().plan(0.0, thorough=False) is None


def test_a_look_starts_behind_what_was_seen() -> None:
    made = lanes(7, 9, 8)
    assert made.plan(0.01, thorough=False) == ([0], [9])
    assert made.plan(0.01, thorough=True) is None


def test_higher_lanes_come_first() -> None:
    made = lanes(7)
    made.learn(claims(3, priority=5), limit=100)
    assert made.plan(0.0, thorough=False) == ([5, 0], [3, 7])


def test_who_keeps_up_starts_where_it_was_a_moment_ago() -> None:
    made = ClaimHints()
    for _ in range(2):  # so long that there is no other look from the front
        made.learn_front(claims(0), limit=100, now=0.0, took_s=1.0)
    moments = {0: 0.0}
    for step in range(1, 40):
        now = step * 0.01
        plan = made.plan(now, thorough=False)
        assert plan is not None
        age_s = now - moments[plan[1][0]]
        # Before the watch was looked at twice there is nothing to go back to.
        assert step <= 10 or 0.045 <= age_s <= 0.125, (step, age_s)
        made.learn(claims(step), limit=100)
        moments[step] = now


def test_who_works_off_a_backlog_starts_at_its_hints() -> None:
    made = ClaimHints()
    for _ in range(2):
        made.learn_front(claims(10), limit=100, now=1.0, took_s=1.0)
    for step in range(1, 9):
        now = 1.0 + step * 0.03
        made.learn(claims(10 + step), limit=1)
        assert made.plan(now, thorough=False) == ([0], [10 + step])


def test_the_longer_looks_take_the_smaller_is_their_share() -> None:
    for took_s, pause_s in ((0.0001, 0.02), (0.001, 0.05), (0.01, 0.5), (0.02, 2.0), (0.06, 15.0)):
        made = lanes(1, took_s=took_s)
        made.learn_front(claims(2), limit=100, now=0.0, took_s=took_s)
        assert made.plan(pause_s * 0.99, thorough=False) is not None, took_s
        assert made.plan(pause_s * 1.01, thorough=False) is None, took_s


def test_one_slow_look_does_not_put_the_next_one_off() -> None:
    made = lanes(1, took_s=0.001)
    made.learn_front(claims(2), limit=100, now=0.0, took_s=1.0)
    assert made.plan(0.049, thorough=False) is not None
    assert made.plan(0.051, thorough=False) is None


def test_a_full_look_from_the_front_may_set_the_hint_back() -> None:
    made = lanes(50)
    made.learn_front(claims(3, 4), limit=2, now=0.0, took_s=0.001)
    assert made.plan(0.0, thorough=False) == ([0], [4])
