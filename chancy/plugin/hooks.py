"""The hooks of an application's plugins: validated, and compiled into one chain for each hook."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from chancy.attempt.claim import Claim
from chancy.attempt.judge import judge
from chancy.attempt.outcome import Outcome, Raised
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import Capability
from chancy.checks import check_broker_name, check_function_path
from chancy.containment import Containment, HookFailed, provided, refuse
from chancy.context.context import JobContext
from chancy.errors import ConfigurationError, PushError
from chancy.job.definition import Job, QueuedJob
from chancy.plugin.contained_claims import ContainedClaims
from chancy.plugin.decisions import check_decision
from chancy.plugin.finding import Finding, Severity
from chancy.plugin.leader import LeaderGate, Unelected
from chancy.plugin.payloads import StoredPayloads
from chancy.plugin.plugin import AroundContext, Plugin
from chancy.plugin.pushing import Change, PreparedPush, Pushable, PushContext
from chancy.plugin.runtime import Application, BrokerContext, Panel, QueueClaims, Runtime
from chancy.plugin.shape import check_hooks
from chancy.plugin.tables import PayloadTable
from chancy.postgres.schema.component import Migrations, ordered
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.queue.rules import UnknownRules
from chancy.states import State
from chancy.text import shown, storable

#: The timeout of `Plugin.why_held` in seconds, and the maximum characters shown of its result.
_EXPLAIN_S, _MAX_EXPLANATION = 5.0, 500
#: The timeout of `Plugin.examine` in seconds, the maximum findings shown of a plugin, and the
#: maximum characters of each of their texts.
_EXAMINE_S, _MAX_FINDINGS, _MAX_FINDING = 5.0, 20, 1_000

#: Capabilities for work on the plugins' tables, which only the control broker has.
_BESIDE_TABLES = frozenset({Capability.SQL, Capability.SETTLING})

#: Characters of the arguments and meta of a claim above which `Plugin.settling` and
#: `Plugin.settled` do not get them.
_MOST_CARRIED = 10_000

T = TypeVar("T")

#: The attributes of a `LeaderGate`.
_GATE = ("leading", "term", "wait", "vacant")

Settled = Callable[[Sequence[Settlement], Sequence[Settlement]], None]


class AroundHook(NamedTuple):
    """The `around` of a plugin."""

    contained: Containment
    around: Callable[[JobContext], AroundContext]


class PluginHook(NamedTuple):
    """A plugin that overrides a hook, with the containment of failures of its calls."""

    plugin: Plugin
    contained: Containment


class Hooks:
    """The hooks of an application.

    :raises ConfigurationError: two plugins have the same identifier, or the same name for their
        tables or a panel, or both elect a leader or have a codec; or a dependency is missing, or
        plugins depend on each other.
    """

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        by_identifier = _by_identifier(plugins)
        dependencies = _dependencies(by_identifier)
        in_order = tuple(_after_dependencies(by_identifier, dependencies))
        #: The order of all hooks: each plugin after those that it depends on, otherwise as passed.
        self.plugins = tuple(plugin for _, plugin in in_order)
        #: The components that own tables in addition to the core, in the order of their migration.
        self.components = ordered(
            (
                name,
                _one(name, "migrations", Migrations | None, plugin.migrations),
                dependencies[name],
            )
            for name, plugin in in_order
        )
        self.panels: tuple[Panel, ...] = _panels(self.plugins)
        self._judging = tuple(
            (contained, plugin.judging) for plugin, contained in self._overriding("judging")
        )
        #: The middleware of each run, in the order of entry.
        self.around = tuple(
            AroundHook(contained, plugin.around) for plugin, contained in self._overriding("around")
        )
        #: Paths of the functions that wrap each job in executor processes, in the order of entry.
        self.around_in_child: tuple[str, ...] = tuple(_around_in_child(self.plugins))
        self._inside = tuple(map(_inside, self._overriding("settling")))
        self._pushing = self._overriding("pushing")
        self._preparing = self._overriding("prepare_push")
        self._settled = tuple(
            (contained, plugin.settled) for plugin, contained in self._overriding("settled")
        )
        #: Whether settlements carry their claims: 0.2 µs a job.
        self._carrying = bool(self._settled) or any(
            plugin.settling_claims for plugin, _ in self._overriding("settling")
        )
        self._explaining = self._overriding("why_held")
        self._examining = self._overriding("examine")
        self._claiming = self._overriding("claiming")
        #: Encodes and decodes stored payloads of jobs; None if no plugin has a codec.
        self.payloads = _payloads(self._overriding("codec"))
        #: The tables of plugins with payloads that a codec has encoded.
        self.payload_tables: tuple[PayloadTable, ...] = tuple(
            table
            for plugin, contained in self._overriding("payload_tables")
            for table in _several(
                contained.plugin, "payload_tables", PayloadTable, plugin.payload_tables
            )
        )
        self._electing = _one_electing(self._overriding("gate"))
        self.services = self._overriding("serve")

    def _overriding(self, hook: str) -> tuple[PluginHook, ...]:
        """The plugins that override a hook. The hook is never called for other plugins."""
        return tuple(
            PluginHook(plugin, Containment(plugin.get_identifier(), hook))
            for plugin in self.plugins
            if getattr(type(plugin), hook) is not getattr(Plugin, hook)
        )

    def check_broker(self, broker: Broker) -> None:
        """Raise `ConfigurationError` unless the broker offers what the plugins require."""
        offered = broker.capabilities
        for plugin in self.plugins:
            _check_offered(offered, type(broker).__name__, "", plugin, "requires", plugin.requires)

    def check_queue(self, queue: Queue, broker: Broker) -> None:
        """Raise `ConfigurationError` unless the broker of a queue offers what plugins require."""
        offered = broker.capabilities
        if queue.broker != DEFAULT_BROKER:
            offered -= _BESIDE_TABLES
        self.check_rules(queue)
        name, where = repr(queue.broker), f"queue {queue.name!r}: "
        for plugin in self.plugins:
            requires = partial(plugin.requires_for, queue)
            _check_offered(offered, name, where, plugin, "requires_for", requires)

    def check_rules(self, queue: Queue) -> None:
        """Raise `ConfigurationError` if a queue has rules and no plugin enforces rules, or if this
        release does not know one of them."""
        for rule in queue.rules:
            if isinstance(rule, UnknownRules):
                raise ConfigurationError(
                    f"queue {queue.name!r} has rules that this release cannot read: "
                    f"{shown(rule.stored)}: use a release that can, or declare the rules again"
                )
        if queue.rules and not self._claiming:
            raise _unruled(queue)

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        """The factories of the brokers that plugins supply, by the name of the broker.

        :raises ConfigurationError: a name is invalid, or two plugins use it.
        """
        made: dict[str, Callable[[], Broker]] = {}
        owners = {DEFAULT_BROKER: "the core"}
        for plugin, contained in self._overriding("brokers"):
            where = f"the plugin {contained.plugin!r}"
            supply = partial(plugin.brokers, context)
            factories = _one(contained.plugin, "brokers", Mapping, supply)
            for name, make in factories.items():
                check_broker_name(name, where)
                if name in owners:
                    raise ConfigurationError(
                        f"{where} supplies a broker {name!r}, and {owners[name]} has a broker of "
                        "the same name: rename one of them"
                    )
                owners[name], made[name] = where, make
        return made

    def claiming(
        self, queue: Queue, broker: Broker, wake: Callable[[], None]
    ) -> QueueClaims | None:
        """The claims of a queue, if a plugin supplies them; see `Plugin.claiming`.

        :raises ConfigurationError: two plugins supply them, or none does for a queue with rules.
        """
        self.check_rules(queue)
        found: QueueClaims | None = None
        for plugin, contained in self._claiming:
            identifier = contained.plugin
            claim = partial(plugin.claiming, queue, broker, wake)
            claims = _one(identifier, "claiming", ("claim", "waits"), claim)
            if claims is None:
                continue
            if found is not None:
                raise ConfigurationError(
                    f"queue {queue.name!r}: the plugin {identifier!r} and another one both claim "
                    "its jobs: pass one of them"
                )
            found = ContainedClaims(claims, contained)
        if queue.rules and found is None:
            raise _unruled(queue)
        return found

    def prepare_push(
        self, app: Application, value: Pushable[Any], *, within: bool, validate: bool
    ) -> PreparedPush[Any] | None:
        """Prepare a value that is pushed in place of a job; None if no plugin pushes it."""
        for plugin, contained in self._preparing:
            found: object = plugin.prepare_push(app, value, within=within, validate=validate)
            if isinstance(found, PreparedPush):
                return found
            if found is not None:
                raise PushError(
                    f"the plugin {contained.plugin!r}: prepare_push() returned "
                    f"{shown(found)} and not a PreparedPush"
                )
        return None

    @property
    def pushing(self) -> Change | None:
        """Applies the changes of plugins to a job before it is stored; None if no plugin has
        any."""
        return self._change if self._pushing else None

    def _change(self, job: Job[Any], context: PushContext) -> Job[Any]:
        for plugin, contained in self._pushing:
            changed: object = plugin.pushing(job, context)
            if not isinstance(changed, Job):
                raise PushError(
                    f"job {job.func}: the plugin {contained.plugin!r}: pushing() returned "
                    f"{shown(changed)} and not a Job"
                )
            job = changed
        return job

    def inside(self, broker: Broker) -> tuple[TransactionHook, ...]:
        """The hooks that run in the settling transactions of the control broker."""
        return self._inside if Capability.SETTLING in broker.capabilities else ()

    @property
    def after(self) -> Settled | None:
        """The callback for settlements that were stored, and for stale ones.

        None if no plugin overrides `settled`.
        """
        return self._notify if self._settled else None

    def _notify(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        # A plugin could change a list, which is the settler's own and goes to the other plugins.
        batch, stale = tuple(batch), tuple(stale)
        for contained, settled in self._settled:
            contained.call(None, len(batch), _returning_none, settled, batch, stale)

    def gate(self, runtime: Runtime) -> LeaderGate:
        """The leadership of a worker. Without a plugin that elects a leader, every worker leads."""
        if self._electing is None:
            return Unelected()
        plugin, contained = self._electing
        gate = _one(contained.plugin, "gate", _GATE, partial(plugin.gate, runtime))
        return Unelected() if gate is None else gate

    def vacant(self, gate: LeaderGate) -> None:
        """Notify the leadership of a worker that the leader has left, or may have."""
        if self._electing is not None:
            self._electing.contained.call(None, None, gate.vacant)

    async def why_held(self, app: Application, job: QueuedJob) -> Sequence[str]:
        """One sentence from each plugin that holds the job, in the order of the plugins."""
        found: list[str] = []
        for plugin, contained in self._explaining:
            try:
                reason = await contained.run(
                    job.id, _explained, plugin, app, job, limit_s=_EXPLAIN_S
                )
            except HookFailed as error:
                reason = f"{contained.plugin} failed to report whether it holds the job: {error}"
            if reason is not None:
                found.append(storable(reason, _MAX_EXPLANATION))
        return found

    async def examine(self, app: Application) -> Sequence[Finding]:
        """The findings of every plugin, in the order of the plugins."""
        found: list[Finding] = []
        for plugin, contained in self._examining:
            try:
                found += await contained.run(None, _examined, plugin, app, limit_s=_EXAMINE_S)
            except HookFailed as error:
                why, todo = f"its check failed: {error}", "correct that, and run it again"
                found.append(Finding(contained.plugin, why, todo, Severity.UNKNOWN))
        return found

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """Decide about an outcome: the default decision, changed by each plugin in order."""
        carried = None
        if self._carrying:
            carried = claim
            # Reading an attribute of a claim costs 20 ns, calling a function 60.
            if len(claim.arguments or "") + len(claim.meta or "") > _MOST_CARRIED:
                carried = claim._replace(arguments=None, meta=None)
        default = decision = judge(claim, outcome, carried)
        for contained, judging in self._judging:
            # Without `Containment.call`, because this runs for every outcome.
            try:
                judged = judging(claim, outcome, decision)
                if judged is not decision:
                    check_decision(judged, decision)
                    decision = judged
            except BaseException as error:  # a sync call cannot be cancelled
                contained.failed(error, claim.id)
        if carried is None or (decision is default and default.claim is not None):
            return decision
        if isinstance(outcome, Raised) and outcome.error is not None:
            outcome = replace(outcome, error=None)  # its frames hold the variables of the job
        return decision._replace(claim=carried, elapsed_s=outcome.elapsed_s, unusual=outcome)


def _unruled(queue: Queue) -> ConfigurationError:
    return ConfigurationError(
        f"queue {queue.name!r} has rules, and no plugin of this application enforces them: "
        "pass the plugin GlobalLimits()"
    )


def _concerning(
    contained: Containment, concerns: Callable[[Settlement], object]
) -> Callable[[Sequence[Settlement]], list[Settlement]]:
    """The settlements for which `settling_concerns` returns True. If it fails, the job is settled
    without the plugin."""

    def concerning(batch: Sequence[Settlement]) -> list[Settlement]:
        found: list[Settlement] = []
        for settlement in batch:
            # Without `Containment.call`, because this runs for every settlement.
            try:
                concerned = concerns(settlement)
                if concerned is True:
                    found.append(settlement)
                elif concerned is not False:
                    refuse(concerned, "settling_concerns()", "a bool")
            except BaseException as error:  # a sync call cannot be cancelled
                contained.failed(error, settlement.id)
        return found

    return concerning


def _returning_none(
    settled: Callable[[Sequence[Settlement], Sequence[Settlement]], object],
    batch: Sequence[Settlement],
    stale: Sequence[Settlement],
) -> None:
    if (returned := settled(batch, stale)) is not None:
        refuse(returned, "settled()", "None")


def _on_failed(
    contained: Containment, failed: Callable[[Sequence[Settlement]], None]
) -> Callable[[Sequence[Settlement]], None]:
    """Passes settlements to `settling_failed`."""

    def call(batch: Sequence[Settlement]) -> None:
        contained.call(None, len(batch), failed, tuple(batch))

    return call


async def _explained(plugin: Plugin, app: Application, job: QueuedJob) -> str | None:
    reason: object = await plugin.why_held(app, job)
    if reason is not None and not isinstance(reason, str):
        refuse(reason, "why_held()", "a string or None")
    return reason


async def _examined(plugin: Plugin, app: Application) -> Sequence[Finding]:
    found: object = await plugin.examine(app)
    if not isinstance(found, Sequence) or not all(isinstance(one, Finding) for one in found):
        refuse(found, "examine()", "a sequence of Finding")
    return [
        one._replace(found=storable(one.found, _MAX_FINDING), todo=storable(one.todo, _MAX_FINDING))
        for one in found[:_MAX_FINDINGS]
    ]


def _one(plugin: str, hook: str, kind: Any, function: Callable[[], T]) -> T:
    """The value of a hook.

    :param kind: its type, or the attributes that it needs unless it is None.
    :raises ConfigurationError: the hook failed, or returned another value.
    """

    def call() -> T:
        value = function()
        if isinstance(kind, tuple):
            fits = value is None or all(hasattr(value, name) for name in kind)
            expected = f"None or an object with {', '.join(kind)}"
        else:
            fits = isinstance(value, kind)
            expected = f"of type {getattr(kind, '__name__', kind)}"
        return value if fits else refuse(value, "it", expected)

    return provided(plugin, hook, call)


def _several(
    plugin: str, hook: str, kind: type[T], function: Callable[[], Iterable[T]]
) -> tuple[T, ...]:
    """The values of a hook that returns several of one type.

    :raises ConfigurationError: the hook failed, or returned another value.
    """

    def call() -> tuple[T, ...]:
        found: Any = function()
        several: list[T] | None = None
        if isinstance(found, Iterable) and not isinstance(found, str):
            several = [*found]
        if several is None or not all(isinstance(one, kind) for one in several):
            refuse(found, "it", f"a collection of {kind.__name__}")
        return tuple(several)

    return provided(plugin, hook, call)


def _inside(hook: PluginHook) -> TransactionHook:
    plugin, identifier = hook.plugin, hook.contained.plugin
    states = provided(identifier, "settling_states", _states, plugin)
    concerns = on_failed = None
    if type(plugin).settling_concerns is not Plugin.settling_concerns:
        contained = Containment(identifier, "settling_concerns")
        concerns = _concerning(contained, plugin.settling_concerns)
    if type(plugin).settling_failed is not Plugin.settling_failed:
        contained = Containment(identifier, "settling_failed")
        on_failed = _on_failed(contained, plugin.settling_failed)
    return TransactionHook(identifier, states, plugin.settling, concerns, on_failed)


def _states(plugin: Plugin) -> frozenset[State]:
    states: object = plugin.settling_states
    if not isinstance(states, Collection):
        refuse(states, "it", "a set of states")
    return frozenset(map(State, states))


def _function_path(plugin: Plugin) -> str:
    path: object = plugin.around_in_child
    check_function_path(path)
    return str(path)


def _around_in_child(plugins: Iterable[Plugin]) -> Iterable[str]:
    for plugin in plugins:
        if plugin.around_in_child is not None:
            yield provided(plugin.get_identifier(), "around_in_child", _function_path, plugin)


def _check_offered(
    offered: frozenset[Capability],
    broker: str,
    where: str,
    plugin: Plugin,
    hook: str,
    requires: Callable[[], frozenset[Capability]],
) -> None:
    """Raise `ConfigurationError` unless a broker offers what a hook of a plugin requires."""
    identifier = plugin.get_identifier()
    missing = frozenset(_several(identifier, hook, Capability, requires)) - offered
    if missing:
        raise ConfigurationError(
            f"{where}the plugin {identifier!r} requires a broker with {_listed(missing)}; "
            f"{broker} offers {_listed(offered)}"
        )


def _listed(capabilities: frozenset[str]) -> str:
    return ", ".join(sorted(capabilities)) or "nothing"


def _one_electing(electing: Sequence[PluginHook]) -> PluginHook | None:
    if len(electing) > 1:
        one, other = (hook.contained.plugin for hook in electing[:2])
        raise ConfigurationError(
            f"the plugins {one!r} and {other!r} both elect a leader: pass one of them, or give "
            "yours the identifier of the other"
        )
    return electing[0] if electing else None


def _payloads(hooks: Iterable[PluginHook]) -> StoredPayloads | None:
    found: StoredPayloads | None = None
    owner = ""
    for plugin, contained in hooks:
        identifier = contained.plugin
        codec = _one(identifier, "codec", ("encode", "decode"), plugin.codec)
        if codec is None:
            continue
        if found is not None:
            raise ConfigurationError(
                f"the plugins {owner!r} and {identifier!r} both encode the payloads of jobs: pass "
                "one of them"
            )
        found, owner = StoredPayloads(codec), identifier
    return found


def _panels(plugins: Iterable[Plugin]) -> tuple[Panel, ...]:
    owners: dict[str, str] = {}
    found: list[Panel] = []
    for plugin in plugins:
        identifier = plugin.get_identifier()
        for panel in _several(identifier, "panels", Panel, plugin.panels):
            if panel.name in owners:
                raise ConfigurationError(
                    f"the plugins {owners[panel.name]!r} and {identifier!r} both have a panel "
                    f"{panel.name!r}: rename one of them"
                )
            owners[panel.name] = identifier
            found.append(panel)
    return tuple(found)


def _by_identifier(plugins: Iterable[object]) -> dict[str, Plugin]:
    found: dict[str, Plugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            raise ConfigurationError(f"{plugin!r} is not a Plugin: pass instances, not classes")
        name = type(plugin).__qualname__
        identifier = _one(name, "get_identifier", str, plugin.get_identifier)
        if identifier.split() != [identifier] or not identifier.isprintable():
            raise ConfigurationError(
                f"the plugin {name!r} has the identifier {shown(identifier)}: it must be a string "
                "without blanks, such as 'shop.audit'"
            )
        if identifier in found:
            raise ConfigurationError(
                f"two plugins have the identifier {identifier!r}: "
                f"{found[identifier]!r} and {plugin!r}; pass one of them"
            )
        check_hooks(identifier, plugin)
        found[identifier] = plugin
    return found


def _dependencies(plugins: Mapping[str, Plugin]) -> dict[str, Sequence[str]]:
    """The identifiers of the plugins that each plugin needs."""
    found: dict[str, Sequence[str]] = {
        name: _several(name, "get_dependencies", str, plugin.get_dependencies)
        for name, plugin in plugins.items()
    }
    for name, needed in found.items():
        for dependency in needed:
            if dependency not in plugins:
                raise ConfigurationError(
                    f"the plugin {name!r} needs {dependency!r}, which is "
                    f"not among the plugins: {', '.join(sorted(plugins))}"
                )
    return found


def _after_dependencies(
    plugins: Mapping[str, Plugin], dependencies: Mapping[str, Sequence[str]]
) -> Iterable[tuple[str, Plugin]]:
    """The plugins by identifier, each after those that it depends on, otherwise as passed."""
    waiting = {name: set(needed) for name, needed in dependencies.items()}
    while waiting:
        ready = next((one for one, needed in waiting.items() if not needed & set(waiting)), None)
        if ready is None:
            raise ConfigurationError(
                f"plugins depend on each other in a circle: {_circle(waiting)}; remove one of them "
                "from get_dependencies() of another"
            )
        del waiting[ready]
        yield ready, plugins[ready]


def _circle(waiting: Mapping[str, set[str]]) -> str:
    """A cycle of dependencies among plugins that each wait for another one of them."""
    path = [next(iter(waiting))]
    while path[-1] not in path[:-1]:
        path.append(min(waiting[path[-1]] & set(waiting)))
    return " -> ".join(map(repr, path[path.index(path[-1]) :]))
