"""Chunks of bulk pushes are bounded by the number of their jobs and by their size."""

from __future__ import annotations

import pytest

from chancy.broker.sizes import cut
from chancy.broker.values import CHUNK
from chancy.testing.conformance.bench import prepared


def test_chunks_have_a_bounded_number_of_jobs() -> None:
    jobs = [prepared() for _ in range(2 * CHUNK + 1)]
    assert list(cut(jobs)) == [jobs[:CHUNK], jobs[CHUNK : 2 * CHUNK], jobs[2 * CHUNK :]]
    assert list(cut(jobs[:CHUNK])) == [jobs[:CHUNK]]
    assert list(cut([])) == []


def test_chunks_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.broker.sizes.CHUNK_SIZE", 100)
    small = [prepared(arguments="x" * 30, meta="y" * 20) for _ in range(5)]
    large = prepared(arguments="x" * 1_000)
    assert list(cut(small)) == [small[:2], small[2:4], small[4:]]
    assert list(cut([small[0], large, small[1]])) == [[small[0]], [large], [small[1]]]


def test_a_full_chunk_is_given_before_more_jobs_are_taken() -> None:
    taken = iter([prepared() for _ in range(CHUNK + 1)])
    assert len(next(cut(taken))) == CHUNK
    assert len(list(taken)) == 1
