"""The contract of a plugin, as tests that every plugin can run.

    pytest.register_assert_rewrite("chancy.testing.plugin")
    from chancy.testing.plugin import PluginContract

    class TestAudit(PluginContract):
        @pytest.fixture
        def plugin(self) -> Plugin:
            return Audit()

        @pytest.fixture
        def plugin_dsn(self, empty_dsn: str) -> str:
            return empty_dsn  # for a plugin that owns tables: a database without any

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
from chancy.plugin.plugin import Plugin
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema import revisions as history
from chancy.postgres.schema.component import Component
from chancy.states import TRANSITIONS, State
from chancy.testing.memory import MemoryBroker
from chancy.testing.structure import structure
from chancy.worker.worker import Worker

#: Seconds for which a service is let run, and in which it must end once it is cancelled.
_RUN_S, _END_S = 0.3, 5.0

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
_TIMES = ((1, 0, 3), (3, 0, 3), (1, 2, 1))


def _claims() -> Iterator[Claim]:
    for attempt, crashes, most in _TIMES:
        for meta in (None, '{"shop": {"a": [1]}}'):
            ids = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
            yield Claim(*ids, "q", "a.b", "{}", attempt, most, crashes, 0, 1, meta)


class PluginContract:
    """What chancy expects of a plugin. A subclass gives the fixture ``plugin``."""

    @pytest.fixture
    def plugin(self) -> Plugin:
        """The plugin, made as an application would."""
        raise NotImplementedError("give the fixture `plugin`")

    @pytest.fixture
    def companions(self) -> Sequence[Plugin]:
        """The plugins that it depends on, beside the default ones."""
        return ()

    @pytest.fixture
    def plugin_dsn(self) -> str | None:
        """An empty database, which a plugin that owns tables or requires SQL needs."""
        return None

    @pytest.fixture
    async def app(
        self, plugin: Plugin, companions: Sequence[Plugin], plugin_dsn: str | None
    ) -> AsyncIterator[Chancy]:
        """An open application with this plugin: on Postgres if there is a database for it."""
        plugins = [*companions, plugin]
        if plugin_dsn is None:
            missing = "give the fixture `plugin_dsn`: this plugin"
            assert plugin.migrations() is None, f"{missing} owns tables"
            assert Capability.SQL not in plugin.requires(), f"{missing} requires SQL"
            made = Chancy(broker=MemoryBroker(), plugins=plugins)
        else:
            made = Chancy(plugin_dsn, plugins=plugins)
            await made.migrate()
        async with made:
            yield made

    def component(self, app: Chancy, plugin: Plugin) -> Component | None:
        """What the plugin owns, among what the application has."""
        owned = [c for c in app.hooks.components if c.plugin == plugin.get_identifier()]
        return owned[0] if owned else None

    # What it is

    def test_the_identifier_is_the_classs_own_and_stays(self, plugin: Plugin) -> None:
        identifier = type(plugin).get_identifier()
        assert identifier == plugin.get_identifier() == type(plugin).get_identifier()
        assert identifier.split() == [identifier], "no blanks"
        assert "." in identifier, "a name of its own has the name of its maker before a dot"

    def test_entry_points_name_it_by_its_identifier(self, plugin: Plugin) -> None:
        path = f"{type(plugin).__module__}:{type(plugin).__qualname__}"
        names = [one.identifier for one in installed() if one.path == path]
        assert set(names) <= {plugin.get_identifier()}

    def test_hooks_are_as_they_are_declared(self, plugin: Plugin) -> None:
        for name, declared in vars(Plugin).items():
            own: Any = getattr(type(plugin), name, None)
            if name.startswith("_") or not inspect.isfunction(declared) or own in (None, declared):
                continue
            assert [*inspect.signature(own).parameters] == [
                *inspect.signature(declared).parameters
            ], f"{name} has other parameters"
            assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(declared), (
                f"{name} is {'a' if inspect.iscoroutinefunction(declared) else 'no'} coroutine"
            )

    def test_settings_can_be_checked(self, plugin: Plugin) -> None:
        model = settings_of(type(plugin))
        taken = inspect.signature(type(plugin)).parameters
        assert set(model.model_fields) <= set(taken), "a setting is a parameter"
        for name, field in model.model_fields.items():
            default = taken[name].default
            assert field.is_required() or field.get_default(call_default_factory=True) == default, (
                f"the model and the constructor have other defaults of {name}"
            )

    async def test_it_fits_an_application(self, app: Chancy, plugin: Plugin) -> None:
        assert plugin in app.hooks.plugins
        assert plugin.requires() <= app.broker.capabilities
        await app.check_tables()

    # What it decides

    def test_judging_answers_every_outcome_with_the_id_and_the_lease(self, plugin: Plugin) -> None:
        assert not inspect.iscoroutinefunction(plugin.judging)
        for claim in _claims():
            for outcome in _OUTCOMES:
                verdict = judge(claim, outcome)
                answer: Any = plugin.judging(claim, outcome, verdict)
                assert isinstance(answer, Settlement), f"{outcome}: {answer!r}"
                assert (answer.id, answer.lease) == (claim.id, claim.lease)
                assert answer.state in TRANSITIONS[State.RUNNING]
                assert answer.meta is None or isinstance(json.loads(answer.meta), dict)

    # What it owns

    def test_tables_go_up_down_and_up_again(
        self, plugin: Plugin, companions: Sequence[Plugin], plugin_dsn: str
    ) -> None:
        if plugin.migrations() is None:
            return
        every = Chancy(plugin_dsn, plugins=[*companions, plugin]).hooks.components
        (one,) = [c for c in every if c.plugin == plugin.get_identifier()]

        def move(way: Callable[..., None], revision: str) -> Sequence[str]:
            way(plugin_dsn, components=every, component=one.name, revision=revision)
            return structure(plugin_dsn)

        schema.upgrade(plugin_dsn, components=[c for c in every if c.name in one.after])
        bare = before = structure(plugin_dsn)
        back = "base"
        for revision in history.known(one):
            up = move(schema.upgrade, revision)
            down = move(schema.downgrade, back)
            # The empty version table stays.
            assert _without(one, down) == _without(one, before), f"{revision}: not all goes back"
            assert move(schema.upgrade, revision) == up, f"{revision}: not the same again"
            before, back = up, revision
        relations = [line.split()[2] for line in set(before) - set(bare) if "relation" in line[:8]]
        strange = [name for name in relations if not f"{name}_".startswith(f"{one.name}_")]
        assert strange == [], f"what {one} owns begins with its name"

    async def test_revisions_import_nothing_that_changes(self, app: Chancy, plugin: Plugin) -> None:
        one = self.component(app, plugin)
        if one is None:
            return
        banned = {"chancy", type(plugin).__module__.partition(".")[0]}
        for path in history.folder_of(one).glob("*.py"):
            found = set(_imports(path)) & banned
            assert not found, f"{path.name} imports {found}: it must mean the same for ever"

    # What it offers

    def test_commands_say_what_they_do(self, plugin: Plugin) -> None:
        if type(plugin).commands is Plugin.commands:
            return
        from chancy.cli import extensions, main
        from chancy.cli.options import with_target

        own = extensions.commands([plugin], main.COMMANDS)
        for _, command in own.values():
            with_target(command)
            for path, below in _tree(f"chancy {command.name}", command):
                text = below.help or ""
                assert text.strip(), f"{path}: a docstring is its help"
                assert path in text.partition("Example:\n")[2], f"{path}: an example of its own"
                for option in below.params:
                    # Older versions of click have no help of arguments.
                    if option.param_type_name == "option":
                        words = getattr(option, "help", None)
                        assert words, f"{path} {option.name}: say what it means"

    async def test_panels_give_rows_of_json(self, app: Chancy, plugin: Plugin) -> None:
        for panel in plugin.panels():
            assert panel.title.strip()
            rows = await panel.rows(app)
            json.dumps([dict(row) for row in rows])
            assert len({tuple(row) for row in rows}) <= 1, "rows have the same keys"

    async def test_it_says_of_no_strange_job_that_it_holds_it(
        self, app: Chancy, plugin: Plugin
    ) -> None:
        if type(plugin).why_held is Plugin.why_held:
            return
        found = await plugin.why_held(app, _held())
        assert found is None, f"a job that it never saw: {found!r}"

    # What it does

    async def test_serving_ends_when_it_is_cancelled(self, app: Chancy, plugin: Plugin) -> None:
        if type(plugin).serve is Plugin.serve:
            return
        task = asyncio.create_task(plugin.serve(Worker(app, queues=[])))
        await asyncio.wait({task}, timeout=_RUN_S)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_END_S)
        assert done, f"it still runs {_END_S} s after it was cancelled"
        if not task.cancelled():
            task.result()  # it may have been done before; raises what it raised

    def test_it_stands_beside_the_default_plugins(
        self, plugin: Plugin, companions: Sequence[Plugin]
    ) -> None:
        names = [one.get_identifier() for one in (*defaults(), *companions)]
        own = set(plugin.get_dependencies())
        assert own <= set(names), "give the fixture `companions`"
        assert plugin.get_identifier() not in own


def _held() -> QueuedJob:
    return QueuedJob(
        id=uuid.uuid4(), func="a.b", arguments={}, queue="q", priority=0, state=State.HELD,
        attempt=0, max_attempts=3, crashes=0, run_at=None, worker_id=None, meta={}, errors=(),
        result=None, pushed_at=datetime(2030, 1, 1, tzinfo=UTC), claimed_at=None,
        finished_at=None, stop_asked_at=None, limits=(),
    )  # fmt: skip


def _without(one: Component, lines: Sequence[str]) -> list[str]:
    return [line for line in lines if one.version_table not in line]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def _tree(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _tree(f"{path} {name}", below)
