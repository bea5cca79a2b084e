"""Partitions the jobs of one push by the brokers of their queues. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from chancy.broker.sizes import cut, size_of
from chancy.broker.values import PreparedJob
from chancy.errors import PushError

#: The maximum number of jobs of a bulk push that wait in memory for the broker of the first job.
MAX_DEFERRED = 100_000
#: The maximum characters of their arguments and meta.
MAX_DEFERRED_SIZE = 256_000_000


class PushPartitioning:
    """Partitions a bulk push by broker, while the broker of the first job is storing its jobs.

    :param broker_of: returns the name of the broker of a queue.
    :param check: raises if the broker of this name cannot store these jobs.
    :param stored: called with the name of the broker and each part as it is yielded.
    :raises PushError: from the iterators, so that nothing is stored.
    """

    def __init__(
        self,
        chunks: Iterable[Sequence[PreparedJob]],
        broker_of: Callable[[str], str],
        check: Callable[[str, Sequence[PreparedJob]], None],
        stored: Callable[[str, Sequence[PreparedJob]], None],
    ) -> None:
        self._chunks = iter(chunks)
        self._broker_of = broker_of
        self._check = check
        self._stored = stored
        self._deferred: dict[str, list[PreparedJob]] = {}
        self._deferred_size = 0

    def start(self) -> str | None:
        """The broker of the first job; None if there are no jobs."""
        for chunk in self._chunks:
            if chunk:
                self._chunks = chain([chunk], self._chunks)
                return self._broker_of(chunk[0].queue)
        return None

    def stream(self, name: str) -> Iterator[Sequence[PreparedJob]]:
        """Yield the jobs of one broker in chunks; defers the jobs of other brokers."""
        rest: list[PreparedJob] = []
        for chunk in self._chunks:
            own = self._partition(name, chunk)
            if own:
                self._check(name, own)
                self._stored(name, own)
            if not rest and len(own) == len(chunk):
                yield own
            elif own:
                *full, rest = cut([*rest, *own])
                yield from full
        if rest:
            yield rest

    def _partition(self, name: str, chunk: Sequence[PreparedJob]) -> list[PreparedJob]:
        """The jobs of a chunk that belong to a broker; the others are deferred."""
        brokers = {queue: self._broker_of(queue) for queue in {job.queue for job in chunk}}
        if set(brokers.values()) == {name}:
            return list(chunk)
        for job in chunk:
            if (broker := brokers[job.queue]) != name:
                self._deferred.setdefault(broker, []).append(job)
                self._deferred_size += size_of(job)
        deferred = sum(map(len, self._deferred.values()))
        if deferred > MAX_DEFERRED or self._deferred_size > MAX_DEFERRED_SIZE:
            raise PushError(
                f"{deferred:,} jobs of this call, with {self._deferred_size:,} characters of "
                f"arguments, belong to other brokers than its first job, whose broker is {name!r}; "
                f"at most {MAX_DEFERRED:,} jobs and {MAX_DEFERRED_SIZE:,} characters can wait "
                "until that broker has stored its own jobs: call push_many once for the queues of "
                "each broker"
            )
        for broker, part in self._deferred.items():
            self._check(broker, part[-len(chunk) :])
        return [job for job in chunk if brokers[job.queue] == name]

    def rest(self) -> Iterator[tuple[str, Sequence[Sequence[PreparedJob]]]]:
        """Yield the jobs that `stream` deferred: by broker, in chunks."""
        for name, part in self._deferred.items():
            self._stored(name, part)
            yield name, list(cut(part))
