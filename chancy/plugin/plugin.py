"""The base class of plugins, which add policy to the mechanism of the core.

A plugin overrides the methods it needs. A method that is not overridden is never called, so it
costs nothing. ``chancy.plugins.standard()`` returns the default plugins.

If a hook raises, returns another type or takes too long, only the hook fails: see
`chancy.containment`. A failure at start or in a declaration raises `ConfigurationError` with the
name of the plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.transaction import Transaction
from chancy.broker.values import Capability
from chancy.context.context import JobContext
from chancy.job.definition import Job, QueuedJob
from chancy.plugin.finding import Finding
from chancy.plugin.leader import LeaderGate
from chancy.plugin.payloads import PayloadCodec
from chancy.plugin.pushing import PreparedPush, Pushable, PushContext
from chancy.plugin.runtime import Application, BrokerContext, Panel, QueueClaims, Runtime
from chancy.plugin.tables import PayloadTable
from chancy.postgres.schema.component import Migrations
from chancy.queue.queue import Queue
from chancy.states import State

if TYPE_CHECKING:
    import click
    from pydantic import BaseModel


#: A context manager that wraps a run. The value it yields is ignored.
AroundContext = AbstractAsyncContextManager[object] | AbstractContextManager[object]


class Plugin:
    """The base class of plugins. The keyword parameters of the constructor are the settings."""

    #: A model that validates settings from files, if the annotations of the constructor do not
    #: suffice. Its fields are the parameters of the constructor.
    Settings: ClassVar[type[BaseModel] | None] = None

    @classmethod
    def get_identifier(cls) -> str:
        """The name of the plugin. A plugin replaces the default plugin with the same name."""
        return f"{cls.__module__}.{cls.__qualname__}"

    def get_dependencies(self) -> Sequence[str]:
        """Identifiers of the plugins that this one needs; their hooks are called first.

        Checked at start.
        """
        return ()

    def requires(self) -> frozenset[Capability]:
        """The capabilities that the broker must have. Checked at start."""
        return frozenset()

    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        """The capabilities that the broker of a queue must have.

        Checked when the queue is declared and when a worker starts serving it.
        """
        return self.requires() - {Capability.SQL}

    def migrations(self) -> Migrations | None:
        """The migrations of the tables that this plugin owns; None if it owns none.

        ``chancy migrate`` applies them after those of the plugin's dependencies. A worker refuses
        to start with other revisions.
        """
        return None

    def commands(self) -> Sequence[click.Command]:
        """Commands to add to ``chancy``, usually one group with the name of the plugin. A command
        named ``job NAME`` is added to the group ``job``.

        The commands get ``--app`` and the other shared options; ``@click.pass_obj`` passes a
        `CommandLine`. Import click inside this method. If it fails, an error is printed, and the
        commands of other plugins work.
        """
        return ()

    def panels(self) -> Sequence[Panel]:
        """Panels that a dashboard can show for this plugin."""
        return ()

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        """Factories of brokers that store the jobs of a queue outside Postgres, by name.

        A queue selects one with ``Queue("mail", broker=NAME)``. A name has 1 to 48 of
        ``a-z 0-9 _ -`` and is not ``postgres``. Each call of a factory creates a broker that shares
        no connection with others: one for the event loop of an application, one for the thread of
        its ``sync_…`` calls. Queues, workers, leadership and history stay in Postgres; of the calls
        for queues, only `declare` and `check_queue` are used. An application without a plugin that
        overrides this pays nothing.
        """
        return {}

    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        """Change a job before it is validated and stored, or refuse it. Must be sync and fast.

        Called once for each job, whichever way it is pushed (see `PushWay`), in the order of the
        plugins; not for a push in SQL, which the function ``push`` of the schema validates. Return
        the job, or a copy such as ``job.with_meta(trace=…)``. Raise to refuse it: the exception
        reaches the caller, and nothing of the push is stored. A bulk push reads its jobs while it
        stores them, so the hook may be called for jobs of a push that fails.

        It is called for steps and callbacks when their workflow or batch is pushed, and for ticks
        and replays each time, with plain arguments: queue, priority, function, arguments, attempts,
        meta and limits may change. A tick that is refused is skipped, which its history shows.
        """
        return job

    def prepare_push(
        self, chancy: Application, value: Pushable[Any], *, within: bool, validate: bool
    ) -> PreparedPush[Any] | None:
        """Validate and encode a value that is pushed in place of a job, such as a workflow.

        :param within: whether the caller passed the transaction.
        :param validate: False for functions that this process cannot import.
        :returns: None if this plugin does not push such values: the next plugin is called.
        :raises PushError: the value cannot be stored.
        """
        return None

    def codec(self) -> PayloadCodec | None:
        """Return a codec for stored payloads of jobs, for example to encrypt them; None: no codec.

        Arguments are encoded after all checks of a push, when the unique key is known, and decoded
        in the worker before the executor gets them. Results, failures and checkpoints are encoded
        before the outcome is judged, so other plugins, the log and the tables get the encoded
        values; only `around` and `around_in_child` get the plain values. `Reference.result`
        decodes. Called once, when the application is created; only one plugin of an application may
        have a codec.
        """
        return None

    def payload_tables(self) -> Sequence[PayloadTable]:
        """The tables of this plugin with payloads that a codec has encoded, so that they can be
        encoded again with another key. The tables of the core are known.
        """
        return ()

    def claiming(
        self, queue: Queue, broker: Broker, wake: Callable[[], None]
    ) -> QueueClaims | None:
        """Claims the jobs of a queue in place of its broker; None: the broker claims them.

        Called when a worker starts to serve the queue. Only one plugin may return claims for a
        queue. A plugin that returns claims enforces the rules of the queue; without them, a queue
        with rules is refused.

        If ``claim`` raises, returns no list of claims, or takes over 90 s, that is logged, and the
        worker claims again after a few seconds. Claims that the broker has made then are as after a
        lost response.

        :param wake: makes the worker claim again. It also does so when jobs of the queue settle.
        """
        return None

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        """The leadership of a worker, for a plugin that elects a leader, else None.

        Called once for each worker, before it starts. Only one plugin may override it. Without such
        a plugin, every worker leads.
        """
        return None

    def around(self, context: JobContext) -> AroundContext:
        """Middleware: a context manager, sync or async, that wraps one run in the worker's loop.

        The context managers of all plugins are entered in the order of the plugins, within 30 s,
        and exited in reverse order, within 30 s. With the executors async and thread, the job has
        the context variables set on entry, and its `current_job()` is this same ``context``. With
        the executor process, it has neither: see `around_in_child`.

        A method decorated with ``contextlib.contextmanager`` adds 18 µs to a job. Any other one
        adds 130 µs, because it runs in a task, in which it may wait and be cancelled.

        On exit, ``context.outcome`` is the outcome of the run. No exception is passed in, except
        that of a hook whose entry failed. If entry raises, the job does not run, and the attempt
        ends with that error. If exit raises, an attempt that had returned ends with that error.
        """
        return nullcontext()

    #: Path of a function, ``package.module.function``, that each executor process imports at its
    #: start, and calls with the `JobContext` of each job of a ``process`` queue. It returns a sync
    #: context manager that wraps the call of the job's function, which gets its context variables.
    #: As with `around`, no exception is passed in on exit, and ``context.outcome`` is the outcome.
    #: If the import fails, the queue cannot run jobs and is broken.
    around_in_child: str | None = None

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        """Change the decision about an outcome. Must be sync and pure; called in the worker.

        ``id`` and ``lease`` of the settlement must not change, and a broker must be able to store
        it. Otherwise, or if it raises, the decision stays as it was, and the error is logged.

        :param decision: the decision so far.
        """
        return decision

    #: The states of the settlements passed to `settling`. A batch without such states costs
    #: nothing.
    settling_states: frozenset[State] = frozenset(state for state in State if state.final)

    #: Whether `settling`, or `settling_concerns`, reads the claims and outcomes of settlements. If
    #: no plugin does, they have none, and outcomes that wait to be stored take less memory.
    settling_claims: bool = True

    def settling_concerns(self, settlement: Settlement) -> bool:
        """Whether `settling` needs a settlement with one of its states. Must be sync and fast.

        Called for each settlement. If it raises, that settlement is left out, as with False, and
        the error is logged. A batch that concerns no plugin costs nothing extra.
        """
        return True

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        """Write in the transaction that settles jobs: both commit, or neither does.

        ``batch`` has up to 1,000 settlements of ``settling_states`` that passed the fence, in any
        order. Rows of jobs that ended are in ``finished_jobs``, except for jobs that did not fail
        in a queue that does not keep finished jobs. After a lost connection the same batch may be
        passed again, whether its first transaction was rolled back or committed. Each settlement of
        an attempt has its ``claim`` and its ``outcome``, as in `settled`, unless `settling_claims`
        is False.

        Runs in a savepoint. A statement may take 5 s, the hook 10 s. If it raises, its writes are
        rolled back, the jobs settle without them, and the error is logged: a sweep in `serve` must
        repair that. A plugin that loses the transaction three times in a row, or fails after 5 s or
        more, is skipped for 10 s. `settling_failed` gets the settlements that this concerns.
        Called only if the control broker, which has the tables of plugins, offers SETTLING; a
        plugin that depends on that must return it from `requires`. Not called for a waiting job
        that is cancelled, because it has no attempt to settle.
        """

    def settling_failed(self, batch: Sequence[Settlement]) -> None:
        """Called before settlements are stored without what `settling` writes about them.

        `settling` failed or is skipped, or a commit with its writes was refused. ``batch`` has the
        settlements that it got, or would have got. In a queue that does not keep finished jobs, a
        sweep finds no trace of those that succeeded, so only this process can write about them.

        Must be sync and fast; called in the worker's loop, and perhaps again for the same
        settlements: the transaction may not commit. Errors are logged.
        """

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        """Called after settlements were stored, with every state and on every broker.

        ``batch`` has the settlements that were stored, up to 1,000, and ``stale`` those whose claim
        another worker had taken over. Each has its ``claim`` and its ``outcome``; the queue, the
        function and the meta are in the claim. If arguments and meta have over 10,000 characters
        together, both are None. The ``error`` of an outcome `Raised` is None.

        Must be sync and fast; called in the worker's loop, once for each batch. After a lost
        response, the batch may be stale, or be passed again; if the worker dies in between, it is
        never called. A job that was asked to stop and is released became CANCELLED; its settlement
        has the state that was requested. Errors are logged.
        """

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        """Explain what a HELD or PENDING job waits for; ``chancy job why`` shows it.

        Return one sentence, of which 500 characters are shown: the limit, and its current holders,
        at most five. Return None if this plugin does not keep the job from starting. It must only
        read, and has 5 s; an error is shown in place of the sentence.
        """
        return None

    async def examine(self, app: Application) -> Sequence[Finding]:
        """Check what this plugin needs; ``chancy doctor`` shows it.

        Returns one finding for each check, even without a problem, at most 20. It must only read,
        at the same cost with ten million jobs, and has 5 s; an error becomes a finding.
        """
        return ()

    async def serve(self, runtime: Runtime) -> None:
        """Run a background service of each worker, until it is cancelled or has no work.

        If it raises, it is restarted with backoff, and the error is logged. After its cancellation
        it has the worker's shutdown timeout and 30 s to end.
        """
