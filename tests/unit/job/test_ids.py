"""Ids of jobs: UUIDv7, in the order they were made."""

from __future__ import annotations

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

import pytest

from chancy.job.ids import new_id, new_ids


def test_an_id_is_a_uuid_of_version_7_of_the_current_time() -> None:
    before = time.time_ns() // 1_000_000
    made = new_id()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, RFC_4122)
    assert before <= made.int >> 80 <= after + 1


def test_it_is_a_uuid_as_the_constructor_makes_one() -> None:
    for made in (new_id(), *new_ids(2)):
        same = UUID(int=made.int)
        assert (made, hash(made), made.is_safe) == (same, hash(same), same.is_safe)
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == UUID(str(made))
        with pytest.raises(TypeError):
            made.int = 0  # type: ignore[misc]


def test_each_is_greater_than_the_one_before() -> None:
    ids = [new_id() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_the_order_stays_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before < new_id() < new_id()


def test_threads_do_not_make_the_same_id() -> None:
    with ThreadPoolExecutor(4) as threads:
        lists = list(threads.map(lambda _: [new_id() for _ in range(5_000)], range(4)))
    assert len({made for ids in lists for made in ids}) == 20_000


def test_many_at_once_are_new_and_in_order() -> None:
    before = new_id()
    made = new_ids(5_000)
    after = new_id()
    assert [before, *made, after] == sorted({before, *made, after})
    assert all(id.version == 7 and id.variant == RFC_4122 for id in made)
    assert new_ids(0) == []
