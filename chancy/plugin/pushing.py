"""The ways in which jobs are pushed, and other values that can be pushed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob
from chancy.job.definition import Job
from chancy.postgres.within.calls import Fetch

T_co = TypeVar("T_co", covariant=True)


class PushWay(StrEnum):
    """The way in which a job is pushed."""

    #: By any push call of the application, including the jobs of a batch.
    PUSH = "push"
    #: As a step of a workflow, or its undo, when the workflow or the step is added.
    WORKFLOW = "workflow"
    #: As a callback of a batch, when the batch is pushed.
    BATCH = "batch"
    #: At a tick of a cron entry, or when its job is run by hand.
    CRON = "cron"
    #: As the replay of a dead letter.
    REPLAY = "replay"


class PushContext(NamedTuple):
    """How a job is pushed. Its queue is that of the job.

    :param within: whether the transaction that stores the job may be rolled back after the call:
        the caller's, or that of a batch.
    """

    way: PushWay
    within: bool = False


PUSH = PushContext(PushWay.PUSH)
PUSH_WITHIN = PushContext(PushWay.PUSH, within=True)

#: The hooks `pushing` of all plugins.
Change = Callable[[Job[Any], PushContext], Job[Any]]
#: Applies the hooks to a stored job that a plugin pushes. Its arguments are in their stored form.
PrepareStored = Callable[[Job[Any], PushWay], PreparedJob]


class Pushable(Generic[T_co]):
    """A value that `Chancy.push` takes in place of a job, such as a workflow; it returns a T_co.

    A plugin stores it: see `Plugin.prepare_push`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PreparedPush(Generic[T_co]):
    """A validated and encoded value, ready to be stored.

    :param store: stores it with a broker or, in a transaction of the caller, with its statements.
    :param reference: the return value of the push.
    """

    store: Callable[[Broker, Fetch | None], Awaitable[None]]
    reference: T_co


def columns(prepared: PreparedJob) -> str:
    """The columns of a stored job that the hooks may have changed, as a JSON object."""
    texts = {"arguments": prepared.arguments, "meta": prepared.meta, "limits": prepared.limits}
    plain = {
        "queue": prepared.queue,
        "priority": prepared.priority,
        "func": prepared.func,
        "max_attempts": prepared.max_attempts,
    }
    rest = "".join(f', "{name}": {text or "null"}' for name, text in texts.items())
    return f"{json.dumps(plain)[:-1]}{rest}}}"
