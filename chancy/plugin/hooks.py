"""The hooks of an application's plugins: validated, and compiled into one chain for each hook."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from chancy.attempt.claim import Claim
from chancy.attempt.judge import judge
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import Capability
from chancy.checks import check_broker_name
from chancy.context.context import JobContext
from chancy.errors import ConfigurationError
from chancy.job.definition import QueuedJob
from chancy.plugin.leader import LeaderGate, Unelected
from chancy.plugin.plugin import AroundContext, Plugin
from chancy.plugin.runtime import Application, BrokerContext, Panel, Runtime
from chancy.postgres.schema.component import ordered
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.text import storable

logger = logging.getLogger("chancy.hooks")

#: The timeout of `Plugin.why_held` in seconds, and the characters that are shown of its result.
_EXPLAIN_S, _MAX_EXPLANATION = 5.0, 500

Judging = Callable[[Claim, Outcome, Settlement], Settlement]
Around = Callable[[JobContext], AroundContext]
Settled = Callable[[Sequence[Settlement]], None]


class Hooks:
    """The hooks of an application.

    :raises ConfigurationError: two plugins have the same identifier, or the same name for their
        tables or a panel, or both elect a leader; or a dependency is missing, or
        plugins depend on each other.
    """

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        self.plugins = tuple(plugins)
        by_identifier: dict[str, Plugin] = {}
        for plugin in self.plugins:
            _check_plugin(plugin)
            identifier = plugin.get_identifier()
            if identifier in by_identifier:
                raise ConfigurationError(
                    f"two plugins have the identifier {identifier!r}: "
                    f"{by_identifier[identifier]!r} and {plugin!r}; pass one of them"
                )
            by_identifier[identifier] = plugin
        for plugin in self.plugins:
            for dependency in plugin.get_dependencies():
                if dependency not in by_identifier:
                    raise ConfigurationError(
                        f"the plugin {plugin.get_identifier()!r} needs {dependency!r}, which is "
                        f"not among the plugins: {', '.join(sorted(by_identifier))}"
                    )
        #: Each after the plugins that it depends on, otherwise as given: the order of all hooks.
        self.plugins = tuple(_after_dependencies(by_identifier))
        #: The components that own tables beside the core, in the order of their migration.
        self.components = ordered(
            (plugin.get_identifier(), plugin.migrations(), plugin.get_dependencies())
            for plugin in self.plugins
        )
        self.panels: tuple[Panel, ...] = _panels(self.plugins)
        self._judging: tuple[tuple[str, Judging], ...] = tuple(
            (plugin.get_identifier(), plugin.judging)
            for plugin in self.plugins
            if type(plugin).judging is not Plugin.judging
        )
        #: The middleware of each run, in the order of entry.
        self.around: tuple[Around, ...] = tuple(
            plugin.around for plugin in self.plugins if type(plugin).around is not Plugin.around
        )
        self._inside = tuple(_inside(self.plugins))
        self._settled: tuple[tuple[str, Settled], ...] = tuple(
            (plugin.get_identifier(), plugin.settled)
            for plugin in self.plugins
            if type(plugin).settled is not Plugin.settled
        )
        self._explaining: tuple[Plugin, ...] = tuple(
            plugin for plugin in self.plugins if type(plugin).why_held is not Plugin.why_held
        )
        self._electing = _one_electing(self.plugins)
        self.services: tuple[Plugin, ...] = tuple(
            plugin for plugin in self.plugins if type(plugin).serve is not Plugin.serve
        )

    def check_broker(self, broker: Broker) -> None:
        """Raise `ConfigurationError` unless the broker offers what the plugins require."""
        offered = broker.capabilities
        for plugin in self.plugins:
            missing = plugin.requires() - offered
            if missing:
                raise ConfigurationError(
                    f"the plugin {plugin.get_identifier()!r} requires a broker with "
                    f"{_listed(missing)}; {type(broker).__name__} offers {_listed(offered)}"
                )

    def check_queue(self, queue: Queue, broker: Broker) -> None:
        """Raise `ConfigurationError` unless the broker of a queue offers what plugins require."""
        offered = broker.capabilities
        for plugin in self.plugins:
            missing = plugin.requires_for(queue) - offered
            if missing:
                raise ConfigurationError(
                    f"queue {queue.name!r}: the plugin {plugin.get_identifier()!r} requires a "
                    f"broker with {_listed(missing)}; {queue.broker!r} offers {_listed(offered)}"
                )

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        """The factories of the brokers that plugins supply, by name of the broker.

        :raises ConfigurationError: a name is invalid, or two plugins have it.
        """
        made: dict[str, Callable[[], Broker]] = {}
        owners = {DEFAULT_BROKER: "the core"}
        for plugin in self.plugins:
            if type(plugin).brokers is Plugin.brokers:
                continue
            where = f"the plugin {plugin.get_identifier()!r}"
            for name, make in plugin.brokers(context).items():
                check_broker_name(name, where)
                if name in owners:
                    raise ConfigurationError(
                        f"{where} supplies a broker {name!r}, and {owners[name]} has a broker of "
                        "the same name: rename one of them"
                    )
                owners[name], made[name] = where, make
        return made

    def inside(self, broker: Broker) -> tuple[TransactionHook, ...]:
        """The hooks that run in the settling transactions of this broker."""
        return self._inside if Capability.SETTLING in broker.capabilities else ()

    def after(self, broker: Broker) -> Settled | None:
        """The callback for settlements that this broker has stored, if it lacks SETTLING.

        None if the broker has SETTLING, or no plugin overrides `settled`.
        """
        if not self._settled or Capability.SETTLING in broker.capabilities:
            return None
        return self._notify

    def _notify(self, batch: Sequence[Settlement]) -> None:
        for identifier, settled in self._settled:
            try:
                settled(batch)
            except Exception:
                logger.exception("settled_failed plugin=%s settlements=%d", identifier, len(batch))

    def gate(self, runtime: Runtime) -> LeaderGate:
        """The leadership of a worker. Without a plugin that elects a leader every worker leads."""
        gate = self._electing.gate(runtime) if self._electing else None
        return Unelected() if gate is None else gate

    async def why_held(self, app: Application, job: QueuedJob) -> Sequence[str]:
        """One sentence from each plugin that holds the job, in the order of the plugins."""
        found: list[str] = []
        for plugin in self._explaining:
            identifier = plugin.get_identifier()
            try:
                async with asyncio.timeout(_EXPLAIN_S):
                    reason = await plugin.why_held(app, job)
            except Exception as error:
                logger.exception("why_held_failed plugin=%s job=%s", identifier, job.id)
                reason = f"{identifier} failed to report whether it holds the job: {error!r}"
            if reason is not None:
                found.append(storable(str(reason), _MAX_EXPLANATION))
        return found

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """Decide about an outcome: the default decision, changed by each plugin in order."""
        decision = judge(claim, outcome)
        for identifier, judging in self._judging:
            try:
                changed = judging(claim, outcome, decision)
                if changed is decision:
                    continue
                if changed.id != claim.id or changed.lease != claim.lease:
                    raise ValueError(f"the settlement is for another claim: {changed}")
                decision = changed
            except Exception:
                logger.exception("judging_failed plugin=%s job=%s", identifier, claim.id)
        return decision


def _inside(plugins: Iterable[Plugin]) -> Iterable[TransactionHook]:
    for plugin in plugins:
        if type(plugin).settling is not Plugin.settling:
            chooses = type(plugin).settling_concerns is not Plugin.settling_concerns
            concerns = plugin.settling_concerns if chooses else None
            identifier, states = plugin.get_identifier(), plugin.settling_states
            yield TransactionHook(identifier, states, plugin.settling, concerns)


def _listed(capabilities: frozenset[str]) -> str:
    return ", ".join(sorted(capabilities)) or "nothing"


def _one_electing(plugins: Iterable[Plugin]) -> Plugin | None:
    found = [plugin for plugin in plugins if type(plugin).gate is not Plugin.gate]
    if len(found) > 1:
        raise ConfigurationError(
            f"the plugins {found[0].get_identifier()!r} and {found[1].get_identifier()!r} both "
            "elect a leader: pass one of them, or give yours the identifier of the other"
        )
    return found[0] if found else None


def _panels(plugins: Iterable[Plugin]) -> tuple[Panel, ...]:
    owners: dict[str, str] = {}
    found: list[Panel] = []
    for plugin in plugins:
        identifier = plugin.get_identifier()
        for panel in plugin.panels():
            if panel.name in owners:
                raise ConfigurationError(
                    f"the plugins {owners[panel.name]!r} and {identifier!r} both have a panel "
                    f"{panel.name!r}: rename one of them"
                )
            owners[panel.name] = identifier
            found.append(panel)
    return tuple(found)


def _check_plugin(plugin: object) -> None:
    if not isinstance(plugin, Plugin):
        raise ConfigurationError(f"{plugin!r} is not a Plugin: pass instances, not classes")


def _after_dependencies(plugins: Mapping[str, Plugin]) -> Iterable[Plugin]:
    """The plugins, each after those that it depends on; otherwise in the given order."""
    waiting = {one: set(plugin.get_dependencies()) for one, plugin in plugins.items()}
    while waiting:
        ready = next((one for one, needed in waiting.items() if not needed & set(waiting)), None)
        if ready is None:
            raise ConfigurationError(
                f"plugins depend on each other in a circle: {_circle(waiting)}; remove one of them "
                "from get_dependencies() of another"
            )
        del waiting[ready]
        yield plugins[ready]


def _circle(waiting: Mapping[str, set[str]]) -> str:
    """A circle of dependencies, of plugins of which each waits for another one of them."""
    path = [next(iter(waiting))]
    while path[-1] not in path[:-1]:
        path.append(min(waiting[path[-1]] & set(waiting)))
    return " -> ".join(map(repr, path[path.index(path[-1]) :]))
