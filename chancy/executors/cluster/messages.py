"""Messages between a cluster executor and the hosts of its runs, which are tasks of the cluster.

Clusters pickle what their tasks get and return; so are these messages.
"""

from __future__ import annotations

from typing import NamedTuple

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.executors.process.settings import ChildKind
from chancy.job.limits import Limits


class HostedCall(NamedTuple):
    """An attempt to run on a host.

    :param run: identifies the attempt in messages.
    :param claim: without arguments if these are passed by reference.
    :param contact_timeout_s: seconds without a message of the worker after which the host stops
        the job.
    :param kind: the executor process that runs it.
    """

    run: str
    claim: Claim
    limits: Limits
    contact_timeout_s: float
    kind: ChildKind

    def with_arguments(self, arguments: str) -> HostedCall:
        """The call with arguments that were passed by reference."""
        return self._replace(claim=self.claim._replace(arguments=arguments))


class HostReady(NamedTuple):
    """A host can start its job, and waits for `StartRun`."""

    run: str
    place: str


class ProgressReported(NamedTuple):
    run: str
    fraction: float
    text: str


class StoreRequested(NamedTuple):
    """A job asks to store a checkpoint; `CheckpointStored` with the same number is the answer."""

    run: str
    number: int
    meta: str


class CompletionBegun(NamedTuple):
    run: str


class RecordLogged(NamedTuple):
    run: str
    level: int
    body: bytes


class StartRun(NamedTuple):
    """The attempt is still wanted, and has not run elsewhere."""

    run: str


class StopRun(NamedTuple):
    """Interrupt the job, as `Executor.interrupt` does."""

    run: str
    outcome: Outcome


class CheckpointStored(NamedTuple):
    """:param error: see `chancy.executors.process.answer.encode_error`."""

    run: str
    number: int
    error: bytes


class StillWanted(NamedTuple):
    """The worker lives, and wants the run to continue."""

    run: str


HostMessage = HostReady | ProgressReported | StoreRequested | CompletionBegun | RecordLogged
WorkerMessage = StartRun | StopRun | CheckpointStored | StillWanted
