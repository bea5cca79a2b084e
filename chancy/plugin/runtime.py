"""The interfaces passed to plugins: the worker, the application, the command line, and panels."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker, Claims
from chancy.clock import Clock
from chancy.errors import ConfigurationError
from chancy.job.definition import Job
from chancy.job.registry import Registry
from chancy.plugin.leader import LeaderGate
from chancy.plugin.pushing import PrepareStored, PushContext
from chancy.plugin.tables import PayloadTable
from chancy.results.reference import Reference
from chancy.text import shown

T = TypeVar("T")


_PANEL = re.compile(r"[a-z][a-z0-9_-]{0,47}")


class StoredForms(Protocol):
    """Converts jobs to the form in which plugins store them."""

    def encode_arguments(self, func: str, arguments: str, queue: str | None) -> str:
        """Encode validated JSON arguments for storage; see `Plugin.codec`.

        :param queue: the queue of the job, or None.
        :raises PushError: a rule of the queue could not read them.
        """
        ...

    @property
    def prepare_stored(self) -> PrepareStored | None:
        """Applies `Plugin.pushing` to a job that is stored already, before it is pushed; see
        `chancy.plugin.pushing.columns`. None if no plugin overrides the hook.

        :raises Exception: the exception with which a plugin refuses the job.
        """
        ...


class Runtime(StoredForms, Protocol):
    """The worker, as passed to a plugin's service."""

    @property
    def broker(self) -> Broker: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def worker_id(self) -> UUID: ...

    @property
    def heartbeat_timeout_s(self) -> float:
        """Seconds without a heartbeat after which a worker is presumed dead."""
        ...

    @property
    def leader(self) -> LeaderGate:
        """The leadership of this worker, for work that only one worker needs to do."""
        ...

    @property
    def ending(self) -> asyncio.Event:
        """Set when the worker starts to shut down, while its jobs can still finish.

        Services are cancelled after the jobs. If a service needs time to shut down, begin when this
        is set.
        """
        ...

    def encode_line(self, func: str, line: str) -> str:
        """Encode a logged line of a job for storage; see `Plugin.codec`."""
        ...

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """Decide about an outcome, with the plugins' `judging`."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """`Broker.settle`, with the plugins' `settling` in its transaction."""
        ...


class QueueClaims(Claims, Protocol):
    """Claims the jobs of one queue on one worker, in place of its broker."""

    @property
    def waits(self) -> bool:
        """Whether jobs wait only for a time, at which these claims wake the worker. A worker that
        runs until its queues are empty waits for such jobs."""
        ...


class Application(StoredForms, Protocol):
    """The application, a `chancy.app.Chancy`, as passed to a plugin's commands and panels."""

    @property
    def broker(self) -> Broker: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def registry(self) -> Registry: ...
    @property
    def max_payload(self) -> int: ...

    def before_push(self, job: Job[Any], context: PushContext) -> Job[Any]:
        """Apply the hook `pushing` of the plugins to a job, before a plugin stores it."""
        ...

    def decode_result(self, func: str, result: Any) -> Any:
        """Decode a stored result, as a JSON value; see `Plugin.codec`.

        :raises UnreadablePayload: it is encrypted with a key that this process does not have.
        """
        ...

    def decode_line(self, stored: str) -> str:
        """Decode a stored line; see `Plugin.codec`.

        :raises UnreadablePayload: it is encrypted with a key that this process does not have.
        """
        ...

    @property
    def payload_tables(self) -> Sequence[PayloadTable]:
        """The tables, of all plugins, with payloads that a codec has encoded."""
        ...

    def sync_call(self, work: Callable[[Broker], Awaitable[T]], *, waits: bool = False) -> T:
        """Run a coroutine function with the broker of the sync calls, and return its result.

        :param waits: the function may wait for commits of other processes.
        """
        ...

    def before_close(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call and await a function each time the application closes, while it is still open."""
        ...

    async def push(
        self, job: Job, *, within: object | None = None, validate: bool = True
    ) -> Reference: ...


class CommandLine(Protocol):
    """The command line, as passed to a plugin's command by ``click.pass_obj``."""

    def run(self, work: Callable[[Application], Awaitable[T]]) -> T:
        """Open the application of ``--app``, ``--dsn`` …, await the work, and close it.

        A `ChancyError` ends the command with its message and exit code.
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
    """The settings of an application that the brokers of its plugins need.

    :param schema: the schema of the tables in Postgres, validated but not quoted.
    :param postgres: whether the tables exist: False with a control broker for tests.
    :param max_payload: the maximum bytes of the arguments, the meta, or the result of a job.
    """

    schema: str
    postgres: bool
    clock: Clock
    max_payload: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A table of data that a plugin provides for a dashboard.

    :param name: used in URLs, 1 to 48 of ``a-z 0-9 _ -``; unique among all panels.
    :param title: a title for people.
    :param rows: returns the current rows, all with the same keys and with JSON values.
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
