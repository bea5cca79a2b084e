"""Bounds of statements: how many values, and how large, go into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from chancy.broker.values import CHUNK, PreparedJob

#: The most characters of arguments and meta of a chunk, unless it is a single larger job.
CHUNK_SIZE = 8_000_000

T = TypeVar("T")


def size_of(job: PreparedJob) -> int:
    """The characters of the arguments and the meta of a job."""
    return len(job.arguments) + len(job.meta or "")


def cut(jobs: Iterable[PreparedJob]) -> Iterator[list[PreparedJob]]:
    """Cut jobs into chunks of at most `CHUNK` jobs and `CHUNK_SIZE` characters."""
    return pieces(jobs, size_of, CHUNK)


def pieces(values: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Cut values into lists of at most ``most`` values and `CHUNK_SIZE` in all."""
    piece: list[T] = []
    size = 0
    for value in values:
        added = size_of(value)
        if piece and size + added > CHUNK_SIZE:
            yield piece
            piece, size = [], 0
        piece.append(value)
        size += added
        if len(piece) == most:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
