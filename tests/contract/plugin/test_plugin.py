"""Our own plugins keep the contract; ones that break it are found out."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from chancy import Chancy, Claim, Outcome, Plugin, Runtime, Settlement, State
from chancy.job.definition import QueuedJob
from chancy.plugin.payloads import Payload, PayloadCodec
from chancy.plugin.runtime import Application, Panel
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.encryption import Encryption, new_key
from chancy.plugins.leadership import Leadership
from chancy.plugins.pruner import Prune, Pruner
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.reprioritize import Aging, Reprioritize
from chancy.plugins.retry import Retries
from chancy.postgres.schema.component import Migrations
from chancy.testing.memory import MemoryBroker
from chancy.testing.plugin import PluginContract
from tests.plugins.auditor import Auditor, Clerk
from tests.plugins.ledger import Ledger
from tests.support.postgres_fixtures import _database, find_run, template_with


class OnTables(PluginContract):
    """On a database that has the tables of the plugin, made once for all tests of a class."""

    @pytest.fixture
    def plugin_dsn(
        self,
        request: pytest.FixtureRequest,
        plugin: Plugin,
        companions: Sequence[Plugin],
        shipped_template: str,
    ) -> Iterator[str]:
        template = template_with(request.config, shipped_template, *companions, plugin)
        with _database(find_run(request.config), request, template) as dsn:
            yield dsn

    @pytest.fixture
    async def app(
        self, plugin: Plugin, companions: Sequence[Plugin], plugin_dsn: str
    ) -> AsyncIterator[Chancy]:
        """Without the migration of tables that are there, which takes 0.1 s of CPU time."""
        async with Chancy(plugin_dsn, plugins=[*companions, plugin]) as chancy:
            yield chancy

    def test_tables_go_up_down_and_up_again(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, plugin: Plugin, companions: Sequence[Plugin], empty_dsn: str
    ) -> None:
        super().test_tables_go_up_down_and_up_again(plugin, companions, empty_dsn)


class TestRetry(PluginContract):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Retries()


class TestRecovery(PluginContract):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Recovery()


class TestPruner(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Pruner(rules=[Prune(keep_last=10)])


class TestRedis(OnTables):
    @pytest.fixture
    def plugin(self, redis_url: str) -> Plugin:
        return RedisPlugin(url=redis_url)


class TestReprioritize(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Reprioritize(rules=[Aging(every=timedelta(minutes=5))])


class TestEncryption(PluginContract):
    @pytest.fixture
    def plugin(self) -> Encryption:
        return Encryption({"k1": new_key()})


class TestLeadership(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Leadership()


class TestDeadLetters(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return DeadLetters()


class TestLedger(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Ledger()

    @pytest.fixture
    def companions(self) -> Sequence[Plugin]:
        return Clerk(), Auditor()


class Marking(Plugin):
    """Stores a payload as an object with these keys."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.marking"

    def codec(self) -> PayloadCodec:
        return _MarkingCodec(self.keys)


class _MarkingCodec:
    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def encode(self, func: str, payload: Payload, text: str) -> str:
        value: object = text
        for key in reversed(self._keys):
            value = {key: value}
        return json.dumps(value)

    def decode(self, func: str, payload: Payload, text: str) -> str:
        value = json.loads(text)
        try:
            for key in self._keys:
                value = value[key]
        except KeyError:
            return text
        return value if isinstance(value, str) else json.dumps(value)


class TestMarking(PluginContract):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Marking("$chancy", "mine")


CONTRACT = PluginContract()


class Nameless(Plugin):
    def __init__(self) -> None:
        self.identifier = f"x.{uuid.uuid4()}"

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.identifier

    async def judging(  # type: ignore[override]
        self, claim: Claim, outcome: Outcome, decision: Settlement
    ) -> Settlement:
        return decision


class Forging(Plugin):
    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        return decision._replace(lease=uuid.uuid4())


class Holding(Plugin):
    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        return decision._replace(state=State.RUNNING)


class Silent(Plugin):
    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Any:
        return None


class Renamed(Plugin):
    def judging(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, work: Claim, outcome: Outcome, decision: Settlement
    ) -> Settlement:
        return decision


class Stubborn(Plugin):
    ends = False

    async def serve(self, runtime: Runtime) -> None:
        while not self.ends:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)


class Failing(Plugin):
    async def serve(self, runtime: Runtime) -> None:
        raise RuntimeError("at once")


class Mute(Plugin):
    def commands(self) -> Sequence[click.Command]:
        return [click.Command("mute", help="Say nothing.")]


async def moment(app: Application) -> list[dict[str, Any]]:
    return [{"id": uuid.uuid4()}]


class Painting(Plugin):
    def panels(self) -> Sequence[Panel]:
        return [Panel(name="p", title="P", rows=moment)]


class Claiming(Plugin):
    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        return "it is mine"


@pytest.mark.parametrize(
    ("test", "plugin"),
    [
        (CONTRACT.test_the_identifier_is_fixed_and_namespaced, Nameless()),
        (CONTRACT.test_hooks_have_the_declared_signatures, Nameless()),
        (CONTRACT.test_hooks_have_the_declared_signatures, Renamed()),
        (CONTRACT.test_judging_keeps_the_id_and_the_lease_of_every_outcome, Forging()),
        (CONTRACT.test_judging_keeps_the_id_and_the_lease_of_every_outcome, Holding()),
        (CONTRACT.test_judging_keeps_the_id_and_the_lease_of_every_outcome, Silent()),
        (CONTRACT.test_commands_have_help_and_an_example, Mute()),
        (CONTRACT.test_the_codec_decodes_what_it_encodes, Marking("mine")),
        (CONTRACT.test_the_codec_decodes_what_it_encodes, Marking("$chancy")),
    ],
)
def test_a_plugin_that_breaks_the_contract_is_found_out(test: Any, plugin: Plugin) -> None:
    with pytest.raises((AssertionError, TypeError)):
        test(plugin)


@pytest.mark.parametrize(
    ("test", "plugin", "error"),
    [
        (CONTRACT.test_serve_ends_when_it_is_cancelled, Failing(), RuntimeError),
        (CONTRACT.test_panels_return_rows_of_json, Painting(), TypeError),
        (CONTRACT.test_why_held_returns_none_for_other_jobs, Claiming(), AssertionError),
    ],
)
async def test_one_that_breaks_it_in_an_application_is_found_out(
    test: Any, plugin: Plugin, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await test(Chancy(broker=MemoryBroker(), plugins=[plugin]), plugin)


async def test_a_service_that_does_not_end_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.testing.plugin._END_S", 0.2)
    plugin = Stubborn()
    app = Chancy(broker=MemoryBroker(), plugins=[plugin])
    with pytest.raises(AssertionError, match="still runs"):
        await CONTRACT.test_serve_ends_when_it_is_cancelled(app, plugin)
    plugin.ends = True
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


@pytest.mark.parametrize("kind", ["forgets", "imports", "strays"])
async def test_tables_that_drift_are_found_out(
    kind: str, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"bad_{kind}"
    versions = tmp_path / package / "versions"
    (versions / "0001_bad").mkdir(parents=True)
    table = "other_things" if kind == "strays" else "bad_things"
    (versions / "0001_bad" / "1.sql").write_text(
        "create table {schema}." + table + " (a int);\ncreate type {schema}.bad_kind as enum ('a')"
    )
    down = f"    run('drop table {{schema}}.{table}')\n"
    if kind != "forgets":
        down += "    run('drop type {schema}.bad_kind')\n"
    (versions / "0001_bad.py").write_text(
        "from alembic import context\n"
        + ("import chancy\n" if kind == "imports" else "")
        + "revision = '0001'\ndown_revision = None\n"
        "def upgrade():\n    context.config.attributes['run_folder'](__file__)\n"
        "def downgrade():\n    run = context.config.attributes['run']\n" + down
    )
    monkeypatch.syspath_prepend(tmp_path)

    class Bad(Plugin):
        def migrations(self) -> Migrations:
            return Migrations(name="bad", package=package, head="0001")

    plugin = Bad()
    if kind == "imports":
        app = Chancy(empty_dsn, plugins=[plugin])
        with pytest.raises(AssertionError, match="imports"):
            await CONTRACT.test_revisions_do_not_import_application_code(app, plugin)
    else:
        said = {"forgets": "does not revert all", "strays": "begin with its name"}[kind]
        with pytest.raises(AssertionError, match=said):
            CONTRACT.test_tables_go_up_down_and_up_again(plugin, (), empty_dsn)


def test_a_plugin_with_tables_needs_a_database() -> None:
    none: Any = None
    with pytest.raises(AssertionError, match="define the fixture `plugin_dsn`"):
        CONTRACT.test_tables_go_up_down_and_up_again(Leadership(), (), none)


def test_a_database_that_has_the_tables_already_is_refused(dsn: str) -> None:
    with pytest.raises(AssertionError, match="has tables already"):
        CONTRACT.test_tables_go_up_down_and_up_again(Leadership(), (), dsn)
