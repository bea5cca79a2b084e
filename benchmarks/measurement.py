"""What a case gives: one figure of one round, with what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: The detail in which a case says how many cores other programs used meanwhile.
OTHERS = "others' cores"


class BenchmarkFailed(Exception):
    """A case could not be measured. Says what happened and what the processes wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure of one round.

    :param figure: names it among all cases; the same in every round.
    :param unit: of the value, such as ``jobs/s`` or ``ms``.
    :param against: figures of any case that the value is divided by: the title of the column
        with the ratio, and the figure's name.
    :param details: further numbers of the round, by the title of their column.
    :param system: what was measured: ``chancy``, one of its modes as ``chancy, history kept``,
        or another queue. Within a case the rows of one system belong together.
    :param note: what a reader of the row must know, such as a missing bulk call.
    :param missing: why there is no value, which then is 0; the figure says it too.
    """

    figure: str
    unit: str
    value: float
    against: Mapping[str, str] = field(default_factory=dict[str, str])
    details: Mapping[str, float] = field(default_factory=dict[str, float])
    system: str = "chancy"
    note: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A measurement and where it came from."""

    case: str
    round: int
    measurement: Measurement


#: Measures one round of a case. Called once a round, with tables that anything may be left in.
Case = Callable[["Bench"], Iterable[Measurement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything is measured.

    :param quick: take the smaller numbers, once.
    :param full: add what takes long.
    :param scale: multiplies every number; for tests of the benchmarks themselves.
    """

    quick: bool = False
    full: bool = False
    scale: float = 1.0

    def __call__(self, usual: int, *, quick: int | None = None, least: int = 10) -> int:
        """A number of jobs, calls or rows: the usual one, or the one of a quick run."""
        wanted = quick if self.quick and quick is not None else usual
        return max(least, int(wanted * self.scale))


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which a share of them lies, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
