"""Messages between a cluster executor and the hosts of its runs, which are tasks of the cluster.

Clusters pickle what their tasks get and return; so are these messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.executors.process.settings import ChildKind
from chancy.job.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedCall:
    """What a host needs to run one attempt.

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
        return replace(self, claim=self.claim._replace(arguments=arguments))


@dataclass(frozen=True, slots=True)
class HostReady:
    """A host can start its job, and waits for `StartRun`."""

    run: str
    place: str


@dataclass(frozen=True, slots=True)
class ProgressReported:
    run: str
    fraction: float
    text: str


@dataclass(frozen=True, slots=True)
class StoreRequested:
    """A job asks to store a checkpoint; `CheckpointStored` with the same number is the answer."""

    run: str
    number: int
    meta: str


@dataclass(frozen=True, slots=True)
class CompletionBegun:
    run: str


@dataclass(frozen=True, slots=True)
class RecordLogged:
    run: str
    level: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StartRun:
    """The attempt is still wanted, and has not run elsewhere."""

    run: str


@dataclass(frozen=True, slots=True)
class StopRun:
    """Interrupt the job, as `Executor.interrupt` does."""

    run: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """:param error: see `chancy.executors.process.answer.encode_error`."""

    run: str
    number: int
    error: bytes


@dataclass(frozen=True, slots=True)
class StillWanted:
    """The worker lives, and wants the run to continue."""

    run: str


HostMessage = HostReady | ProgressReported | StoreRequested | CompletionBegun | RecordLogged
WorkerMessage = StartRun | StopRun | CheckpointStored | StillWanted
