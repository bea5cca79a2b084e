"""Bounds of bulk pushes: how many jobs, and how large, go into one chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chancy.broker.values import CHUNK, PreparedJob

#: The most characters of arguments and meta of a chunk, unless it is a single larger job.
CHUNK_SIZE = 8_000_000


def size_of(job: PreparedJob) -> int:
    """The characters of the arguments and the meta of a job."""
    return len(job.arguments) + len(job.meta or "")


def cut(jobs: Iterable[PreparedJob]) -> Iterator[list[PreparedJob]]:
    """Cut jobs into chunks of at most `CHUNK` jobs and `CHUNK_SIZE` characters."""
    chunk: list[PreparedJob] = []
    size = 0
    for job in jobs:
        added = size_of(job)
        if chunk and size + added > CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += added
        if len(chunk) == CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
