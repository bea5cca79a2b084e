"""What plugins see: the worker they run beside, the application, and panels of the dashboard."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import ConfigurationError
from chancy.job.definition import Job
from chancy.job.registry import Registry
from chancy.plugin.leader import LeaderGate
from chancy.results.reference import Reference
from chancy.text import shown

if TYPE_CHECKING:
    pass


T = TypeVar("T")


_PANEL = re.compile(r"[a-z][a-z0-9_-]{0,47}")


class Runtime(Protocol):
    """What a plugin's service sees of the worker it runs beside."""

    @property
    def broker(self) -> Broker: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def worker_id(self) -> UUID: ...

    @property
    def heartbeat_timeout_s(self) -> float:
        """Seconds without a beat after which a worker counts as dead."""
        ...

    @property
    def leader(self) -> LeaderGate:
        """Whether this worker leads: for what need not be done by all of them."""
        ...

    @property
    def ending(self) -> asyncio.Event:
        """Set when the worker begins to end, while its jobs still have their time. A service is
        cancelled after them; one that needs time of its own for its end begins it here."""
        ...

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """The verdict on an outcome, plugins included."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """`Broker.settle`, with what plugins write in its transaction."""
        ...


class Application(Protocol):
    """What a plugin's commands and panels see of the application, a `chancy.app.Chancy`."""

    @property
    def broker(self) -> Broker: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def registry(self) -> Registry: ...
    @property
    def max_payload(self) -> int: ...

    async def push(
        self, job: Job, *, within: object | None = None, validate: bool = True
    ) -> Reference: ...


class CommandLine(Protocol):
    """What a plugin's command is given by ``click.pass_obj``."""

    def run(self, work: Callable[[Application], Awaitable[T]]) -> T:
        """Open the application that ``--app``, ``--dsn`` … name, await the work, and close it.

        An error of chancy's ends the command with its message and exit code.
        """
        ...

    def line(self, text: object) -> None:
        """Print a line for people."""
        ...

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print aligned columns for people."""
        ...

    def script(self, value: object) -> None:
        """Print JSON for scripts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """What an application gives to the brokers that plugins make for it.

    :param schema: of the tables in Postgres, checked but not quoted.
    :param postgres: whether the tables are there: the control broker is not one for tests.
    :param max_payload: bytes that the arguments, the meta, or the result of a job may take.
    """

    schema: str
    postgres: bool
    clock: Clock
    max_payload: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Something that a plugin has to show: rows of data, for a dashboard to lay out.

    :param name: for addresses, 1 to 48 of ``a-z 0-9 _ -``; of all panels only one may have it.
    :param title: for people.
    :param rows: gives the rows as they are now, each with the same keys; values are what JSON has.
    """

    name: str
    title: str
    rows: Callable[[Application], Awaitable[Sequence[Mapping[str, Any]]]]

    def __post_init__(self) -> None:
        if not _PANEL.fullmatch(self.name):
            raise ConfigurationError(
                f"{shown(self.name)} cannot be the name of a panel: use 1 to 48 of the "
                "characters a-z 0-9 _ -, beginning with a letter"
            )
