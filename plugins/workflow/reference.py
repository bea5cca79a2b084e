"""Handles to workflows that were pushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.errors import JobCancelled, JobError, PushError
from chancy.plugin.runtime import Application
from chancy.plugin.tracking.groups import GroupReference
from chancy.plugins.workflow.calls import WorkflowCalls, signal_error
from chancy.plugins.workflow.record import (
    StepRecord,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
)
from chancy.postgres.within import bind, bind_blocking, run_blocking
from chancy.serialization.signature import Signature
from chancy.text import shown


class WorkflowFailed(JobError):
    """The error of `WorkflowReference.result` for a workflow that failed or was compensated.

    :param state: failed or compensated.
    """

    def __init__(self, id: UUID, state: WorkflowState, why: str) -> None:
        self.id = id
        self.state = state
        self.why = why
        super().__init__(f"workflow {id} is {state.label}: {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.state, self.why)


class WorkflowReference(GroupReference[Application, WorkflowState]):
    """A handle to one workflow. Its id is known before the push commits."""

    __slots__ = ("_calls",)
    kind = "workflow"

    def __init__(
        self, id: UUID, chancy: Application, broker: Broker | None = None, *, stored: bool = False
    ) -> None:
        super().__init__(id, chancy, broker, stored=stored)
        self._calls = WorkflowCalls(self._broker, chancy.max_payload)

    async def get(self) -> WorkflowRecord | None:
        """The current workflow; None if it is not committed, or was purged."""
        return await self._calls.get(self.id)

    async def steps(self) -> Sequence[StepRecord]:
        """Its current steps, in the order in which they were added."""
        return await self._calls.steps(self.id)

    async def step(self, name: str) -> StepRecord | None:
        """One of its current steps; None if there is no step with this name."""
        for step in await self.steps():
            if step.name == name:
                return step
        return None

    async def progress(self) -> WorkflowProgress | None:
        """The number of its steps by outcome; None if the workflow does not exist."""
        return await self._calls.progress(self.id)

    async def wait(self, timeout_s: float | None = None) -> WorkflowState:
        """Wait until the workflow has ended, and return its final state.

        Waiters are woken by notifications; all waiters of an application share one session. The
        workflow need not exist yet, unless `stored`.

        :raises WaitTimeout: it has not ended within ``timeout_s`` seconds. It continues.
        :raises JobError: the workflow is gone, because it was purged or deleted. If it is missing
            and not `stored`, the wait continues.
        """
        return (await self._end(self._calls, timeout_s)).state

    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait until the workflow has ended, and return the result of its last step; with several
        last steps, a dict of their results by name.

        :raises WorkflowFailed: it failed, or was compensated.
        :raises JobCancelled: it was cancelled.
        :raises WaitTimeout: it has not ended within ``timeout_s`` seconds.
        :raises JobError: as for `wait`.
        """
        state, why = await self._end(self._calls, timeout_s)
        match state:
            case WorkflowState.SUCCEEDED:
                return await self._calls.results(
                    self.id, self._signature, self._chancy.decode_result
                )
            case WorkflowState.CANCELLED:
                reason = "" if why in (None, "cancelled") else f": {why}"
                raise JobCancelled(f"workflow {self.id} was cancelled{reason}")
            case _:
                raise WorkflowFailed(self.id, state, why or "no reason")

    def sync_get(self) -> WorkflowRecord | None:
        """`get` for code without an event loop."""
        return self._sync(lambda here: here.get())

    def sync_wait(self, timeout_s: float | None = None) -> WorkflowState:
        """`wait` for code without an event loop."""
        return self._sync(lambda here: here.wait(timeout_s), waits=True)

    def sync_result(self, timeout_s: float | None = None) -> Any:
        """`result` for code without an event loop."""
        return self._sync(lambda here: here.result(timeout_s), waits=True)

    async def signal(self, name: str, payload: Any = None, *, within: object | None = None) -> bool:
        """Send a signal to the step with this name. It is stored until the step waits for it.

        :param payload: the result of the step: JSON, or a value whose type pydantic can serialize;
            an annotated parameter turns it back into its type.
        :param within: a connection with an open transaction of the caller, as for a push.
        :returns: False if the signal was sent before; the first one counts.
        :raises PushError: there is no such step, the step or the workflow has ended without the
            signal, or the payload cannot be stored. Nothing was written.
        """
        fetch = None if within is None else bind(within)
        encode = self._chancy.encode_arguments
        return self._sent(name, await self._calls.signal(self.id, name, payload, fetch, encode))

    def sync_signal(self, name: str, payload: Any = None, *, within: object) -> bool:
        """`signal` for code without an event loop, in a transaction of the caller."""
        fetch, encode = bind_blocking(within), self._chancy.encode_arguments
        calling = self._calls.signal(self.id, name, payload, fetch, encode)
        return self._sent(name, run_blocking(calling))

    def _sent(self, name: str, answer: str) -> bool:
        if answer in ("sent", "before"):
            return answer == "sent"
        raise signal_error(answer, self.id, name)

    async def cancel(self) -> bool:
        """Cancel the workflow: running steps are asked to stop, the others never start.

        :returns: False if it does not exist or has ended; a failed workflow can be cancelled.
        """
        return await self._calls.cancel(self.id)

    async def retry(self, step: str | None = None) -> int:
        """Run failed and cancelled steps again, with fresh attempts, and continue from there.

        :param step: also run this step and all steps after it again, whatever their outcome.
        :returns: the number of steps that run again.
        :raises PushError: there is no such workflow or step, it cannot be retried in its state,
            some of these steps still run, including any step of a cancelled workflow that was asked
            to stop, or some of its steps were purged. Nothing was written.
        """
        count = await self._calls.retry(self.id, step)
        if count is None:
            having = "" if step is None else f" with a step {shown(step)}"
            raise PushError(f"there is no workflow {self.id}{having}")
        if count == -1:
            found = await self.get()
            label = "gone" if found is None else found.state.label
            how = (
                ": name a step to run it and all steps after it again"
                if label == "succeeded"
                else ""
            )
            raise PushError(f"workflow {self.id} is {label}, and cannot be retried as it is{how}")
        if count == -2:
            raise PushError(
                f"workflow {self.id}: some of these steps still run: wait until they have ended, "
                "or cancel the workflow"
            )
        if count == -3:
            raise PushError(
                f"workflow {self.id} cannot be retried: it ended over keep_days ago, and some of "
                "its steps were purged"
            )
        return count

    def _signature(self, func: str) -> Signature | None:
        try:
            return self._chancy.registry.signature(func)
        except PushError:
            return None
