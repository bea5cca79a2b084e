"""The results of cases: figures of a round, and the size of a run. Imports no other module here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: The detail with the number of cores that other programs used during a measurement.
OTHERS = "others' cores"


class BenchmarkFailed(Exception):
    """A case could not be measured. The message includes the output of its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure of one round.

    :param figure: a name that is unique among all cases and the same in every round.
    :param unit: the unit of the value, such as ``jobs/s`` or ``ms``.
    :param against: figures of any case by which the value is divided: names of figures by the
        title of the column with the ratio.
    :param details: further numbers of the round, by the title of their column.
    :param system: the measured system: ``chancy``, one of its modes such as ``chancy, history
        kept``, or another queue. A report groups the rows of a case by system.
    :param note: a remark for the reader of the row, such as a missing bulk call.
    :param missing: why there is no value, which then is 0; the figure's name includes it.
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
    """A measurement with its case and round."""

    case: str
    round: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a run.

    :param quick: use the smaller numbers, in one round.
    :param full: include long measurements.
    :param scale: multiplies every number; for tests of the benchmarks themselves.
    """

    quick: bool = False
    full: bool = False
    scale: float = 1.0

    def __call__(self, usual: int, *, quick: int | None = None, least: int = 10) -> int:
        """The number of jobs, calls or rows for this run, at least ``least``."""
        number = quick if self.quick and quick is not None else usual
        return max(least, int(number * self.scale))

    def lasting(self, usual_s: float, *, least_s: float = 1.0) -> float:
        """The seconds of a measurement: fewer only in tiny runs, and at least ``least_s``."""
        return max(least_s, usual_s * min(1.0, self.scale))


def quantile(values: Iterable[float], share: float) -> float:
    """The quantile of the values, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
