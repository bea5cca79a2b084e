"""Handles to workflows that were pushed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from chancy.errors import JobCancelled, JobError, PushError
from chancy.plugin.runtime import Application
from chancy.plugins.workflow.flows import WorkflowCalls, refusal
from chancy.plugins.workflow.record import (
    StepRecord,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
)
from chancy.plugins.workflow.waiting import Waiting
from chancy.results.reference import checked
from chancy.serialization.signature import Signature
from chancy.text import shown


class WorkflowFailed(JobError):
    """A workflow has failed, or was compensated: raised where its result is asked for.

    :param state: which of the two.
    """

    def __init__(self, id: UUID, state: WorkflowState, why: str) -> None:
        self.id = id
        self.state = state
        self.why = why
        super().__init__(f"workflow {id} is {state.label}: {why}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.state, self.why)


class WorkflowReference:
    """A handle to one workflow. Its id is known before the push commits."""

    __slots__ = ("_chancy", "_flows", "_waiting", "id")

    def __init__(self, id: UUID, chancy: Application, waiting: Callable[[], Waiting]) -> None:
        self.id = checked(id, "workflow")
        self._chancy = chancy
        self._flows = WorkflowCalls(chancy.broker, chancy.max_payload)
        self._waiting = waiting

    def __repr__(self) -> str:
        return f"WorkflowReference({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowReference) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def get(self) -> WorkflowRecord | None:
        """The workflow as it is now; None if there is none (not committed, or forgotten)."""
        return await self._flows.get(self.id)

    async def steps(self) -> Sequence[StepRecord]:
        """Its steps as they are now, in the order in which they were added."""
        return await self._flows.steps(self.id)

    async def step(self, name: str) -> StepRecord | None:
        """One of its steps as it is now."""
        for one in await self.steps():
            if one.name == name:
                return one
        return None

    async def progress(self) -> WorkflowProgress | None:
        """How many of its steps have ended."""
        return await self._flows.progress(self.id)

    async def wait(self, timeout_s: float | None = None) -> WorkflowState:
        """Wait until it has ended, and give how.

        A notice wakes; however many wait in one application, they share one session. A workflow
        that is not there yet is waited for.
        :raises WaitTimeout: it has not within ``timeout_s`` seconds. It goes on.
        """
        state, _ = await self._waiting().wait(self.id, timeout_s)
        return state

    async def result(self, timeout_s: float | None = None) -> Any:
        """Wait until it has ended, and give what its last step returned; with several steps that
        no other waits for, a dict of what each returned, by name.

        :raises WorkflowFailed: it has failed, or was compensated.
        :raises JobCancelled: it was cancelled.
        :raises WaitTimeout: it has not ended within ``timeout_s`` seconds.
        """
        state, why = await self._waiting().wait(self.id, timeout_s)
        match state:
            case WorkflowState.SUCCEEDED:
                return await self._flows.results(self.id, self._signature)
            case WorkflowState.CANCELLED:
                said = "" if why in (None, "cancelled") else f": {why}"
                raise JobCancelled(f"workflow {self.id} was cancelled{said}")
            case _:
                raise WorkflowFailed(self.id, state, why or "no reason")

    async def signal(self, name: str, payload: Any = None, *, within: object | None = None) -> bool:
        """Give a signal to the step that waits for it, or will. It is kept until then.

        :param payload: the result of the step: what JSON has, or a value whose type pydantic can
            write, which comes back as that type where a parameter says so.
        :param within: a connection in a transaction of the caller's, as of a push.
        :returns: False if there was one before, which counts.
        :raises PushError: there is no such step, it or the workflow has ended without the signal,
            or the payload cannot be stored. Nothing was written.
        """
        return self._sent(name, await self._flows.signal(self.id, name, payload, within))

    def sync_signal(self, name: str, payload: Any = None, *, within: object) -> bool:
        """`signal` for code without an event loop, in a transaction of the caller's."""
        return self._sent(name, self._flows.signal_sync(self.id, name, payload, within))

    def _sent(self, name: str, what: str) -> bool:
        if what in ("sent", "before"):
            return what == "sent"
        raise refusal(what, self.id, name)

    async def cancel(self) -> bool:
        """End it: steps that run are asked to stop, and the others never begin.

        :returns: False if there is none, or it has ended already; a failed one is cancelled.
        """
        return await self._flows.cancel(self.id)

    async def retry(self, step: str | None = None) -> int:
        """Run what has failed or was cancelled again, with fresh attempts, and go on from there.

        :param step: run this step and all behind it again, too, whatever became of them.
        :returns: how many steps are run again.
        :raises PushError: there is no such workflow or step, it cannot be retried as it is, or some
            of these steps run yet, or of a cancelled one any step that was asked to stop.
        """
        count = await self._flows.retry(self.id, step)
        if count is None:
            what = "" if step is None else f" with a step {shown(step)}"
            raise PushError(f"there is no workflow {self.id}{what}")
        if count == -1:
            found = await self.get()
            label = "gone" if found is None else found.state.label
            how = (
                ": name the step to run it and all behind it again" if label == "succeeded" else ""
            )
            raise PushError(f"workflow {self.id} is {label}, and cannot be retried as it is{how}")
        if count == -2:
            raise PushError(
                f"workflow {self.id}: some of these steps run yet: wait until they have ended, or "
                "cancel it if it goes on"
            )
        return count

    def _signature(self, func: str) -> Signature | None:
        try:
            return self._chancy.registry.signature(func)
        except PushError:
            return None
