"""Plugins: policy that is added to the mechanism of the core.

A plugin overrides the methods it wants. A method that is not overridden costs nothing: it is
not called. The defaults are in ``chancy.plugins.standard()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Protocol
from uuid import UUID

from chancy.attempt import Claim, Outcome, Settlement
from chancy.broker import Broker
from chancy.clock import Clock
from chancy.context import JobContext
from chancy.postgres.component import Migrations

#: What is open around a run; what entering it gives is not used.
Surrounding = AbstractAsyncContextManager[object] | AbstractContextManager[object]


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

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """The verdict on an outcome, plugins included."""
        ...


class Plugin:
    """Base of all plugins."""

    @classmethod
    def get_identifier(cls) -> str:
        """The name a plugin is known by. A plugin replaces a default one of the same name."""
        return f"{cls.__module__}.{cls.__qualname__}"

    def get_dependencies(self) -> Sequence[str]:
        """Identifiers of plugins that must be there too. Checked at start."""
        return ()

    def migrations(self) -> Migrations | None:
        """The history of the tables that this plugin owns; None: it owns none.

        ``chancy migrate`` brings them up behind those of its dependencies, and a worker refuses
        to start on others.
        """
        return None

    def around(self, context: JobContext) -> Surrounding:
        """Give a context manager, sync or async, to be open around one run. In the worker's loop.

        Those of all plugins are entered in their order, left in reverse, within 30 s. The job sees
        the context variables that are set on entering, in a queue of the executor async or
        thread; there `current_job()` is this very ``context``. A child of a process queue sees
        none of it.

        On leaving, ``context.outcome`` says how the run has ended; no exception comes in, unless
        it is that of a hook which could not be entered. If entering raises, the job does not run,
        and the attempt ends as that error does; so does one that returned if leaving raises.
        """
        return nullcontext()

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        """Change the verdict on an outcome. Sync and pure; called in the worker.

        ``id`` and ``lease`` of the settlement must stay. If it raises, the verdict stands as it
        was; the error is logged.
        """
        return verdict

    async def serve(self, runtime: Runtime) -> None:
        """Run beside a worker until cancelled, or return when there is nothing to do here.

        If it raises it is started again, with back-off, and the error is logged.
        """
