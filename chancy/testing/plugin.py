"""The contract of plugins, as tests that every plugin can run.

    pytest.register_assert_rewrite("chancy.testing.plugin")
    from chancy.testing.plugin import PluginContract

    class TestAudit(PluginContract):
        @pytest.fixture
        def plugin(self) -> Plugin:
            return Audit()

        @pytest.fixture
        def plugin_dsn(self, empty_dsn: str) -> str:
            return empty_dsn  # for a plugin that owns tables: an empty database for each test

Some tests are async: run them with pytest-asyncio in its automatic mode.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chancy.app.app import Chancy
from chancy.app.default_plugins import defaults
from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.judge import judge
from chancy.attempt.outcome import (
    Cancelled,
    Lost,
    MemoryExceeded,
    Outcome,
    Raised,
    Released,
    Returned,
    TimedOut,
)
from chancy.attempt.settlement import Settlement
from chancy.broker.values import Capability
from chancy.job.definition import QueuedJob
from chancy.plugin.discovery import installed, settings_of
from chancy.plugin.finding import Finding
from chancy.plugin.payloads import Payload
from chancy.plugin.plugin import Plugin
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema import revisions as history
from chancy.postgres.schema.component import Component
from chancy.serialization.sealed import marked
from chancy.states import TRANSITIONS, State
from chancy.testing.memory import MemoryBroker
from chancy.testing.structure import structure
from chancy.worker.worker import Worker

#: Seconds that a service runs, and seconds within which it must end after it is cancelled.
_RUN_S, _END_S = 0.3, 30.0

_OUTCOMES: Sequence[Outcome] = (
    Returned(),
    Returned('{"a": 1}'),
    Raised(Failure.named("shop.Oops", "oops")),
    Raised(Failure.of(ValueError("no"))),
    Raised(Failure.named("chancy.errors.InvalidArguments", "no")),
    TimedOut(1.5),
    MemoryExceeded(2**25),
    Cancelled("asked"),
    Released("the worker ends"),
    Lost("the worker is gone"),
)
_PAYLOADS = (
    (Payload.ARGUMENTS, '{"$chancy": {"version": 2}, "a": [1, "é", {"b": null}]}'),
    (Payload.RESULT, "[1, null]"),
    (Payload.RESULT, '"text"'),
    (Payload.FAILURE, '{"type": "shop.Oops", "message": "oops", "trace": "…"}'),
    (Payload.CHECKPOINTS, '{"paid": {"value": 1, "attempt": 1}}'),
    (Payload.LOG, '"a line"'),
)
_TIMES = ((1, 0, 3), (3, 0, 3), (1, 2, 1))


def _claims() -> Iterator[Claim]:
    for attempt, crashes, most in _TIMES:
        for meta in (None, '{"shop": {"a": [1]}}'):
            ids = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
            yield Claim(*ids, "q", "a.b", "{}", attempt, most, crashes, 0, 1, meta)


class PluginContract:
    """The contract of plugins. A subclass provides the fixture ``plugin``."""

    @pytest.fixture
    def plugin(self) -> Plugin:
        """The plugin, created as in an application."""
        raise NotImplementedError("define the fixture `plugin`")

    @pytest.fixture
    def companions(self) -> Sequence[Plugin]:
        """The plugins that it depends on, besides the default ones."""
        return ()

    @pytest.fixture
    def plugin_dsn(self) -> str | None:
        """The DSN of an empty database, one for each test; for plugins that own tables or require
        SQL."""
        return None

    @pytest.fixture
    async def app(
        self, plugin: Plugin, companions: Sequence[Plugin], plugin_dsn: str | None
    ) -> AsyncIterator[Chancy]:
        """An open application with this plugin, on Postgres if `plugin_dsn` is defined."""
        plugins = [*companions, plugin]
        if plugin_dsn is None:
            missing = "define the fixture `plugin_dsn`: this plugin"
            assert plugin.migrations() is None, f"{missing} owns tables"
            assert Capability.SQL not in plugin.requires(), f"{missing} requires SQL"
            chancy = Chancy(broker=MemoryBroker(), plugins=plugins)
        else:
            chancy = Chancy(plugin_dsn, plugins=plugins)
            await chancy.migrate()
        async with chancy:
            yield chancy

    def component(self, app: Chancy, plugin: Plugin) -> Component | None:
        """The component of the plugin: its tables and migrations; None if it owns none."""
        owned = [c for c in app.hooks.components if c.plugin == plugin.get_identifier()]
        return owned[0] if owned else None

    # Identity and settings

    def test_the_identifier_is_fixed_and_namespaced(self, plugin: Plugin) -> None:
        identifier = type(plugin).get_identifier()
        assert identifier == plugin.get_identifier() == type(plugin).get_identifier()
        assert identifier.split() == [identifier], "no blanks"
        assert "." in identifier, "the name of the vendor, a dot, and the name of the plugin"

    def test_entry_points_name_it_by_its_identifier(self, plugin: Plugin) -> None:
        path = f"{type(plugin).__module__}:{type(plugin).__qualname__}"
        names = [found.identifier for found in installed() if found.path == path]
        assert set(names) <= {plugin.get_identifier()}

    def test_hooks_have_the_declared_signatures(self, plugin: Plugin) -> None:
        for name, declared in vars(Plugin).items():
            own: Any = getattr(type(plugin), name, None)
            if name.startswith("_") or not inspect.isfunction(declared) or own in (None, declared):
                continue
            assert [*inspect.signature(own).parameters] == [
                *inspect.signature(declared).parameters
            ], f"{name} has other parameters"
            assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(declared), (
                f"{name} must be async"
                if inspect.iscoroutinefunction(declared)
                else f"{name} must not be async"
            )

    def test_settings_match_the_constructor(self, plugin: Plugin) -> None:
        model = settings_of(type(plugin))
        parameters = inspect.signature(type(plugin)).parameters
        assert set(model.model_fields) <= set(parameters), "a setting is a parameter"
        for name, field in model.model_fields.items():
            default = parameters[name].default
            assert field.is_required() or field.get_default(call_default_factory=True) == default, (
                f"the model and the constructor have different defaults of {name}"
            )

    async def test_it_fits_an_application(self, app: Chancy, plugin: Plugin) -> None:
        assert plugin in app.hooks.plugins
        assert plugin.requires() <= app.broker.capabilities
        await app.check_tables()

    # Decisions

    def test_judging_keeps_the_id_and_the_lease_of_every_outcome(self, plugin: Plugin) -> None:
        assert not inspect.iscoroutinefunction(plugin.judging)
        for claim in _claims():
            for outcome in _OUTCOMES:
                decision: Any = plugin.judging(claim, outcome, judge(claim, outcome))
                assert isinstance(decision, Settlement), f"{outcome}: {decision!r}"
                assert (decision.id, decision.lease) == (claim.id, claim.lease)
                assert decision.state in TRANSITIONS[State.RUNNING]
                assert decision.meta is None or isinstance(json.loads(decision.meta), dict)

    # Payloads

    def test_the_codec_decodes_what_it_encodes(self, plugin: Plugin) -> None:
        if (codec := plugin.codec()) is None:
            return
        for payload, text in _PAYLOADS:
            plain, encoded = json.loads(text), json.loads(codec.encode("a.b", payload, text))
            if encoded != plain:
                assert marked(encoded), f"{payload.value}: not an object with the key $chancy"
                func = "" if payload is Payload.LOG else "a.b"
                decoded = codec.decode(func, payload, json.dumps(encoded))
                assert json.loads(decoded) == plain, f"{payload.value}: not what was encoded"
            if marked(plain):
                decoded = codec.decode("a.b", payload, text)
                assert json.loads(decoded) == plain, "decode() changes what is not encoded"

    # Tables

    def test_tables_go_up_down_and_up_again(
        self, plugin: Plugin, companions: Sequence[Plugin], plugin_dsn: str
    ) -> None:
        if plugin.migrations() is None:
            return
        assert plugin_dsn, "define the fixture `plugin_dsn`: this plugin owns tables"
        components = Chancy(plugin_dsn, plugins=[*companions, plugin]).hooks.components
        (component,) = [c for c in components if c.plugin == plugin.get_identifier()]

        def move(migrate: Callable[..., None], revision: str) -> Sequence[str]:
            migrate(plugin_dsn, components=components, component=component.name, revision=revision)
            return structure(plugin_dsn)

        schema.upgrade(plugin_dsn, components=[c for c in components if c.name in component.after])
        bare = before = structure(plugin_dsn)
        own = [line for line in bare if line.startswith(f"relation r {component.name}_")]
        assert own == [], f"{component} has tables already: give each test an empty database"
        back = "base"
        for revision in history.known(component):
            up = move(schema.upgrade, revision)
            down = move(schema.downgrade, back)
            # The empty version table stays.
            assert _without(component, down) == _without(component, before), (
                f"{revision}: the downgrade does not revert all of the upgrade"
            )
            assert move(schema.upgrade, revision) == up, f"{revision}: the second upgrade differs"
            before, back = up, revision
        relations = [line.split()[2] for line in set(before) - set(bare) if "relation" in line[:8]]
        foreign = [name for name in relations if not f"{name}_".startswith(f"{component.name}_")]
        assert foreign == [], f"the names of tables of {component} begin with its name"

    async def test_revisions_do_not_import_application_code(
        self, app: Chancy, plugin: Plugin
    ) -> None:
        component = self.component(app, plugin)
        if component is None:
            return
        banned = {"chancy", type(plugin).__module__.partition(".")[0]}
        for path in history.folder_of(component).glob("*.py"):
            found = set(_imports(path)) & banned
            assert not found, (
                f"{path.name} imports {found}: a revision must not change with other code"
            )

    # Commands and panels

    def test_commands_have_help_and_an_example(self, plugin: Plugin) -> None:
        if type(plugin).commands is Plugin.commands:
            return
        from chancy.cli import extensions, main
        from chancy.cli.options import with_target

        own = extensions.commands([plugin], main.COMMANDS)
        for _, command in own.values():
            with_target(command)
            for path, subcommand in _tree(f"chancy {command.name}", command):
                text = subcommand.help or ""
                assert text.strip(), f"{path}: its docstring is the help text"
                assert path in text.partition("Example:\n")[2], f"{path}: the help needs an example"
                for option in subcommand.params:
                    # Older versions of click have no help for arguments.
                    if option.param_type_name == "option":
                        help_ = getattr(option, "help", None)
                        assert help_, f"{path} {option.name}: the option needs a help text"

    async def test_panels_return_rows_of_json(self, app: Chancy, plugin: Plugin) -> None:
        for panel in plugin.panels():
            assert panel.title.strip()
            rows = await panel.rows(app)
            json.dumps([dict(row) for row in rows])
            assert len({tuple(row) for row in rows}) <= 1, "rows have the same keys"

    async def test_why_held_returns_none_for_other_jobs(self, app: Chancy, plugin: Plugin) -> None:
        if type(plugin).why_held is Plugin.why_held:
            return
        found = await plugin.why_held(app, _held())
        assert found is None, f"a job that this plugin does not hold: {found!r}"

    async def test_examine_returns_findings(self, app: Chancy, plugin: Plugin) -> None:
        if type(plugin).examine is Plugin.examine:
            return
        found = await plugin.examine(app)
        assert len(found) <= 20
        for finding in found:
            assert isinstance(finding, Finding)
            json.dumps(finding.as_json())

    # Services and dependencies

    async def test_serve_ends_when_it_is_cancelled(self, app: Chancy, plugin: Plugin) -> None:
        if type(plugin).serve is Plugin.serve:
            return
        task = asyncio.create_task(plugin.serve(Worker(app, queues=[])))
        await asyncio.wait({task}, timeout=_RUN_S)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_END_S)
        assert done, f"serve() still runs {_END_S} s after it was cancelled"
        if not task.cancelled():
            task.result()  # the task may have ended before; raises its exception

    def test_its_dependencies_are_installed(
        self, plugin: Plugin, companions: Sequence[Plugin]
    ) -> None:
        names = [other.get_identifier() for other in (*defaults(), *companions)]
        own = set(plugin.get_dependencies())
        assert own <= set(names), "define the fixture `companions`"
        assert plugin.get_identifier() not in own


def _held() -> QueuedJob:
    return QueuedJob(
        id=uuid.uuid4(), func="a.b", arguments={}, queue="q", priority=0, state=State.HELD,
        attempt=0, max_attempts=3, crashes=0, run_at=None, worker_id=None, meta={}, errors=(),
        result=None, pushed_at=datetime(2030, 1, 1, tzinfo=UTC), claimed_at=None,
        finished_at=None, stop_asked_at=None, limits=(),
    )  # fmt: skip


def _without(component: Component, lines: Sequence[str]) -> list[str]:
    return [line for line in lines if component.version_table not in line]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def _tree(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _tree(f"{path} {name}", subcommand)
