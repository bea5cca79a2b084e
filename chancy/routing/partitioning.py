"""The jobs of one push, sorted by the brokers of their queues. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from chancy.broker.contract import Broker
from chancy.broker.values import CHUNK, Capability, PreparedJob
from chancy.errors import PushError
from chancy.queue.queue import DEFAULT_BROKER

#: Jobs of one bulk push that wait in memory for the broker of the first job to take its own.
MOST_APART = 100_000


def check_part(
    name: str, broker: Broker, part: Sequence[PreparedJob], within: object | None
) -> None:
    """Raise `PushError` if a broker cannot do what a push asks of it.

    :param part: jobs of queues that live there.
    """
    if name == DEFAULT_BROKER:
        return
    offered = broker.capabilities
    if within is not None and Capability.TRANSACTIONAL_PUSH not in offered:
        raise PushError(
            f"queue {part[0].queue!r} has the broker {name!r}, which does not offer "
            f"{Capability.TRANSACTIONAL_PUSH}: push without within=, or to a queue of "
            f"{DEFAULT_BROKER}"
        )
    if within is not None and Capability.UNIQUE_WITHIN not in offered:
        for job in part:
            if job.unique is not None and job.unique.on_conflict == "raise":
                raise PushError(
                    f"job {job.func} is unique with on_conflict='raise', and its queue "
                    f"{job.queue!r} has the broker {name!r}, which does not offer "
                    f"{Capability.UNIQUE_WITHIN}: use 'skip' or 'replace', or push without within="
                )
    if Capability.UNIQUE not in offered:
        for job in part:
            if job.unique is not None:
                raise PushError(
                    f"job {job.func} is unique, and its queue {job.queue!r} has the broker "
                    f"{name!r}, which does not offer {Capability.UNIQUE}"
                )


class PushPartitioning:
    """Takes the chunks of a bulk push apart, while the broker of the first job is storing.

    :param home: the name of the broker of a queue.
    :param check: raises if the broker of this name cannot store these jobs.
    :param stored: is told the name of the broker and each piece as it is handed out.
    :raises PushError: from the iterators, so that nothing is stored.
    """

    def __init__(
        self,
        chunks: Iterable[Sequence[PreparedJob]],
        home: Callable[[str], str],
        check: Callable[[str, Sequence[PreparedJob]], None],
        stored: Callable[[str, Sequence[PreparedJob]], None],
    ) -> None:
        self._chunks = iter(chunks)
        self._home = home
        self._check = check
        self._stored = stored
        self._apart: dict[str, list[PreparedJob]] = {}

    def begin(self) -> str | None:
        """The broker of the first job; None if there are no jobs."""
        for chunk in self._chunks:
            if chunk:
                self._chunks = chain([chunk], self._chunks)
                return self._home(chunk[0].queue)
        return None

    def stream(self, name: str) -> Iterator[Sequence[PreparedJob]]:
        """The jobs of one broker in chunks of `CHUNK`, the last one shorter; keeps the others."""
        rest: list[PreparedJob] = []
        for chunk in self._chunks:
            mine = self._take(name, chunk)
            if mine:
                self._check(name, mine)
                self._stored(name, mine)
            if not rest and len(mine) == CHUNK:
                yield mine
                continue
            rest += mine
            if len(rest) >= CHUNK:
                yield rest[:CHUNK]
                del rest[:CHUNK]
        if rest:
            yield rest

    def _take(self, name: str, chunk: Sequence[PreparedJob]) -> list[PreparedJob]:
        homes = {queue: self._home(queue) for queue in {job.queue for job in chunk}}
        if set(homes.values()) == {name}:
            return list(chunk)
        for job in chunk:
            if (home := homes[job.queue]) != name:
                self._apart.setdefault(home, []).append(job)
        if (kept := sum(map(len, self._apart.values()))) > MOST_APART:
            raise PushError(
                f"{kept:,} jobs of this call belong to other brokers than that of its first job, "
                f"{name!r}; up to {MOST_APART:,} are kept until that has stored its own: call "
                "push_many once for the queues of each broker"
            )
        for home, part in self._apart.items():
            self._check(home, part[-len(chunk) :])
        return [job for job in chunk if homes[job.queue] == name]

    def rest(self) -> Iterator[tuple[str, Sequence[Sequence[PreparedJob]]]]:
        """What `stream` has kept: by broker, in chunks."""
        for name, part in self._apart.items():
            self._stored(name, part)
            yield name, [part[at : at + CHUNK] for at in range(0, len(part), CHUNK)]
