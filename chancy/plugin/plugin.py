"""Plugins: policy that is added to the mechanism of the core.

A plugin overrides the methods it wants. A method that is not overridden costs nothing: it is
not called. The defaults are in ``chancy.plugins.standard()``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.transaction import Transaction
from chancy.broker.values import Capability
from chancy.context.context import JobContext
from chancy.job.definition import QueuedJob
from chancy.plugin.leader import LeaderGate
from chancy.plugin.runtime import Application, BrokerContext, Panel, Runtime
from chancy.postgres.schema.component import Migrations
from chancy.queue.queue import Queue
from chancy.states import State

if TYPE_CHECKING:
    import click
    from pydantic import BaseModel


#: What is open around a run; what entering it gives is not used.
AroundContext = AbstractAsyncContextManager[object] | AbstractContextManager[object]


class Plugin:
    """Base of all plugins; the keyword parameters of its constructor are the settings of one."""

    #: A model that checks settings from files, if the annotations of the constructor do not say
    #: enough. Its fields are those parameters.
    Settings: ClassVar[type[BaseModel] | None] = None

    @classmethod
    def get_identifier(cls) -> str:
        """The name a plugin is known by; it replaces a default one of the same name."""
        return f"{cls.__module__}.{cls.__qualname__}"

    def get_dependencies(self) -> Sequence[str]:
        """Identifiers of plugins that must be there too. Checked at start."""
        return ()

    def requires(self) -> frozenset[Capability]:
        """What the broker must offer. Checked at start."""
        return frozenset()

    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        """What the broker of a queue must offer. Checked when it is declared, and served."""
        return self.requires() - {Capability.SQL}

    def migrations(self) -> Migrations | None:
        """The history of the tables that this plugin owns; None: it owns none.

        ``chancy migrate`` brings them up behind those of its dependencies, and a worker refuses
        to start on others.
        """
        return None

    def commands(self) -> Sequence[click.Command]:
        """Commands below ``chancy``, most often one group that has the name of the plugin.

        They get ``--app`` …; ``@click.pass_obj`` gives them a `CommandLine`. Import click inside.
        """
        return ()

    def panels(self) -> Sequence[Panel]:
        """What a dashboard can show of this plugin."""
        return ()

    def choose(self, processors: Collection[str]) -> Collection[str]:
        """Let `serve` run only these (``chancy worker --processors``); gives all that it could."""
        return ()

    @property
    def exit_code(self) -> int:
        """What ``chancy worker`` exits with when a plugin has it end; 0 if not."""
        return 0

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        """Other places than Postgres for the jobs of a queue, ``Queue("mail", broker=NAME)``.

        By their names: 1 to 48 of ``a-z 0-9 _ -``, not ``postgres``. Each call of the value makes
        one that shares no connection with others: for the event loop of an application, and for
        the thread of its ``sync_…`` calls. Queues, workers, leadership and history stay in
        Postgres; `declare` and `check_queue` are all that it is asked about queues. An application
        in which nobody overrides this pays nothing.
        """
        return {}

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        """Say how it is known whether a worker leads; None: not by this plugin.

        Called once for each worker, before its start. Of all plugins only one may override it.
        Where nobody does, every worker leads.
        """
        return None

    def around(self, context: JobContext) -> AroundContext:
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

    #: The settlements that `settling` hears of. Without any of these in it a batch costs nothing.
    settling_states: frozenset[State] = frozenset(state for state in State if state.final)

    def settling_concerns(self, settlement: Settlement) -> bool:
        """Whether `settling` wants to hear of a settlement of its states. Sync and quick.

        Asked for each, twice at most; it must not raise. A batch in which nothing concerns any
        plugin costs what it costs without them.
        """
        return True

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        """Write in the transaction that settles: both are there, or neither is.

        ``batch`` has up to 1,000 settlements of ``settling_states`` that the fence has let
        through, in any order. Rows of jobs that ended are in ``finished_jobs``; those of a job
        that did not fail are missing where its queue does not keep them. A batch may be told
        again after a lost connection, its first transaction undone or not at all.

        Runs in a savepoint; a statement may take 5 s, the hook 10 s. If it raises, what it wrote
        is undone, the jobs settle without it, and the error is logged: a sweep in `serve` must
        repair that. Only with a broker of the capability SETTLING, of which a plugin that cannot
        do without says so in `requires`. A waiting job that is cancelled is not told: it has no
        attempt that could settle.
        """

    def settled(self, batch: Sequence[Settlement]) -> None:
        """Hear of settlements that a broker without SETTLING has taken, of every state.

        Sync and quick, in the worker's loop, after they are stored: once, or again if the answer
        was lost, or never if the worker died in between, which a sweep in `serve` must repair. A
        job that was asked to stop and goes back became CANCELLED; it is told as what was asked
        for. If it raises, that is logged.
        """

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        """Say what a job in the state HELD waits for, as ``chancy job why`` shows it.

        One sentence, of which 500 characters are shown: what the limit is, and who has it now,
        five of them at most. None: it is not this plugin that holds the job. Reads only, and
        has 5 s; what it raises is shown instead.
        """
        return None

    async def serve(self, runtime: Runtime) -> None:
        """Run beside a worker until cancelled, or return when there is nothing to do here.

        If it raises it is started again, with back-off, and the error is logged.
        """
