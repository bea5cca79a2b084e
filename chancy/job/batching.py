"""Functions that take the jobs of many pushes in one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from chancy.errors import ConfigurationError
from chancy.text import shown

#: The maximum items of a batch, and the maximum seconds for which a job waits for others.
MOST_ITEMS, MOST_WITHIN_S = 10_000, 60.0
#: The default of the latter.
DEFAULT_WITHIN_S = 1.0


class Batching(NamedTuple):
    """How the jobs of a function are combined into one call.

    :param parameter: the first parameter of the function, a list for the items of all jobs.
    :param size: the maximum items of a call, from 2 to 10,000, unless a single job has more.
    :param within_s: seconds for which a job waits for others.
    """

    parameter: str
    size: int
    within_s: float

    @classmethod
    def of(
        cls,
        func: Callable[..., Any],
        path: str,
        size: object,
        within: timedelta | float | None,
    ) -> Batching | None:
        """Return the batching that a decorator declares; None without ``batch``.

        :raises ConfigurationError: a value is out of range, or the function has no parameter, or
            ``within`` has no ``batch``.
        """
        if size is None:
            if within is not None:
                raise ConfigurationError(f"job {path}: within={shown(within)} needs batch=")
            return None
        if type(size) is not int or not 2 <= size <= MOST_ITEMS:
            raise ConfigurationError(
                f"job {path}: batch={shown(size)} must be a whole number from 2 to {MOST_ITEMS:,}"
            )
        within = DEFAULT_WITHIN_S if within is None else within
        within_s = within.total_seconds() if isinstance(within, timedelta) else within
        if isinstance(within_s, bool) or not isinstance(within_s, int | float):
            within_s = -1.0
        if not 0 < within_s <= MOST_WITHIN_S:
            raise ConfigurationError(
                f"job {path}: within={shown(within)} must be over 0 and at most "
                f"{MOST_WITHIN_S:g} seconds"
            )
        parameter = next(iter(inspect.signature(func).parameters), None)
        if parameter is None:
            raise ConfigurationError(
                f"job {path}: batch={size} needs a function whose first parameter is a list"
            )
        return cls(parameter, size, float(within_s))
