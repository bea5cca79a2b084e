"""Plugins on the command line: their tables, their commands, their settings."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from chancy.app import default_plugins as composition
from chancy.app.default_plugins import defaults
from chancy.cli import extensions, main
from chancy.errors import ConfigurationError
from chancy.plugin.discovery import installed
from chancy.plugins.encryption import new_key
from chancy.postgres.schema import migrate as tables
from tests.plugins.ledger import Ledger
from tests.support.command import inside
from tests.support.sql import ask

# A function, so that each test has an application of its own database.
APP = """\
from chancy import Chancy
from tests.plugins.ledger import Ledger


def chancy():
    return Chancy(plugins=[Ledger()])
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with an application ``ledgered`` and an installed ``tests.ledger``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ledgered.py").write_text(APP)
    folder = tmp_path / "tests_ledger-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tests-ledger\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text(
        "[chancy.plugins]\ntests.ledger = tests.plugins.ledger:Ledger\n"
    )
    importlib.invalidate_caches()
    return tmp_path


def test_the_tables_of_an_application_are_those_of_its_plugins(dsn: str) -> None:
    app = "--app=ledgered"
    behind = inside("migrate", "check", app, dsn=dsn, code=1).err
    assert "component 'ledger' of the plugin 'tests.ledger'" in behind
    assert "run `chancy migrate upgrade`" in behind
    first = inside("migrate", "upgrade", "0001", "--component=ledger", app, dsn=dsn).out
    assert first == "schema chancy: ledger is at 0001, was at nothing\n"
    assert "at revision 0001" in inside("migrate", "check", app, dsn=dsn, code=1).err
    shown = inside("migrate", "current", app, "--json", dsn=dsn).json["components"]
    assert {
        "component": "ledger",
        "plugin": "tests.ledger",
        "current": "0001",
        "head": "0002",
        "state": "behind",
    } in shown
    assert "ledger is at 0002, was at 0001" in inside("migrate", "upgrade", app, dsn=dsn).out
    assert "nothing to do" in inside("migrate", "upgrade", app, dsn=dsn).out
    assert "ledger 0002" in inside("migrate", "check", app, dsn=dsn).out
    steps = inside("migrate", "history", app, "--component=ledger", "--json", dsn=dsn).json
    assert [(one["revision"], one["applied"]) for one in steps] == [("0001", True), ("0002", True)]
    assert "ledger_entries" in inside("migrate", "sql", app, dsn=dsn).out
    assert "ledger_entries" not in inside("migrate", "sql", dsn=dsn).out


def test_leftovers_of_a_removed_plugin_are_reported_with_advice(dsn: str) -> None:
    inside("migrate", "upgrade", "--app=ledgered", dsn=dsn)
    inside("migrate", "check", dsn=dsn)
    shown = inside("migrate", "current", dsn=dsn).out
    assert "left behind" in shown
    assert "drop them and the table NAME_version by hand" in shown
    refused = inside("migrate", "downgrade", "base", "--yes", dsn=dsn, code=2).err
    assert "'ledger'" in refused
    down = ["migrate", "downgrade", "base", "--component=ledger", "--yes", "--app=ledgered"]
    assert "ledger is at nothing" in inside(*down, dsn=dsn).out
    inside("migrate", "downgrade", "base", "--yes", dsn=dsn)
    assert tables.revisions(dsn) == {}


def test_commands_of_plugins_are_there_with_the_application(dsn: str) -> None:
    assert "No such command 'ledger'" in inside("ledger", "list", dsn=dsn, code=2).err
    listing = ["ledger", "list", "--app", "ledgered"]
    assert "run `chancy migrate upgrade`" in inside(*listing, dsn=dsn, code=3).err
    inside("migrate", "upgrade", "--app=ledgered", dsn=dsn)
    assert inside(*listing, dsn=dsn, code=1).out == "no entries\n"
    ask(dsn, "insert into chancy.ledger_entries values (default, gen_random_uuid())")
    assert inside(*listing, "--json", dsn=dsn).json == [{"id": 1, "note": ""}]
    assert inside("ledger", "list", app="ledgered", dsn=dsn).out.split() == ["id", "note", "1"]
    named = inside("ledger", "list", "--app=ledgered", "--dsn", dsn, "--json")
    assert named.json == [{"id": 1, "note": ""}]
    assert "--dsn" in inside("ledger", "list", "--help", app="ledgered", dsn=dsn).out
    elsewhere = inside("ledger", "list", "--dsn=postgresql://127.0.0.1:1/x", plugins="tests.ledger",
                       code=4)  # fmt: skip
    assert "127.0.0.1:1" in elsewhere.err


def test_settings_name_plugins_and_their_settings(directory: Path, dsn: str) -> None:
    (directory / "pyproject.toml").write_text(
        '[tool.chancy.plugins]\n"chancy.pruner" = { keep_days = 3 }\n"tests.ledger" = {}\n'
    )
    found = {one["plugin"]: one for one in inside("plugins", "list", "--json").json}
    assert found["chancy.pruner"]["settings"]["keep_days"] == 3
    assert found["tests.ledger"] == {
        "plugin": "tests.ledger",
        "used": True,
        "distribution": "tests-ledger",
        "version": "1.2",
        "component": "ledger",
        "commands": ["ledger"],
        "settings": {},
    }
    assert "ledger" in inside("migrate", "upgrade", dsn=dsn).out
    named = inside("plugins", "list", "--json", plugins="tests.ledger, chancy.pruner").json
    assert {one["plugin"]: one["settings"] for one in named}["chancy.pruner"]["keep_days"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plugins = ['tests.ledge']", "did you mean 'tests.ledger'"),
        ("plugins = 3", "plugins: Input should be a valid dictionary"),
        ('[tool.chancy.plugins."chancy.pruner"]\nkeep_days = "x"', "setting keep_days"),
        ('[tool.chancy.plugins."chancy.pruner"]\nkept = 1', "no setting 'kept'"),
        ("[tool.chancy.plugins.chancy.pruner]\nkeep_days = 1", "no plugin 'chancy'"),
    ],
)
def test_a_wrong_setting_of_a_plugin_is_named(directory: Path, text: str, said: str) -> None:
    (directory / "pyproject.toml").write_text(f"[tool.chancy]\n{text}\n")
    assert said in inside("plugins", "list", code=2).err


def test_plugins_that_are_only_installed_are_listed_and_not_used() -> None:
    found = {one["plugin"]: one for one in inside("plugins", "list", "--json").json}
    assert (found["tests.ledger"]["used"], found["tests.ledger"]["settings"]) == (False, None)
    assert [one for one in found if found[one]["used"]] == [
        plugin.get_identifier() for plugin in defaults()
    ]
    shown = inside("plugins", "list").out
    assert "tests-ledger 1.2" in shown


def test_settings_with_names_of_secrets_are_not_shown(directory: Path) -> None:
    (directory / "secretive.py").write_text(
        "from chancy import Chancy, Plugin\n"
        "class Secretive(Plugin):\n"
        "    def __init__(self, *, api_token: str, retries: int = 2) -> None:\n"
        "        self.api_token, self.retries = api_token, retries\n"
        "chancy = Chancy('postgresql://nowhere', plugins=[Secretive(api_token='hunter2')])\n"
    )
    for extra in ([], ["--json"]):
        shown = inside("plugins", "list", "--app=secretive", *extra).out
        assert "hunter2" not in shown
        assert "secretive.Secretive" in shown
    listed = {
        one["plugin"]: one for one in inside("plugins", "list", "--app=secretive", "--json").json
    }
    assert listed["secretive.Secretive"]["settings"] == {"api_token": "***", "retries": 2}
    assert listed["secretive.Secretive"]["distribution"] == "the application"


def test_commands_of_one_name_are_refused_with_both_owners() -> None:
    with pytest.raises(ConfigurationError, match=r"'tests\.ledger' has a command 'ledger', which"):
        extensions.commands([Ledger()], {"ledger"})
    with pytest.raises(ConfigurationError, match=r"'tests\.ledger' and 'tests\.ledger' both have"):
        extensions.commands([Ledger(), Ledger()], ())


class Failing(Ledger):
    @classmethod
    def get_identifier(cls) -> str:
        return "tests.failing"

    def commands(self) -> Any:
        raise ImportError("rich is not installed")


class Wrong(Failing):
    @classmethod
    def get_identifier(cls) -> str:
        return "tests.wrong"

    def commands(self) -> Any:
        return ["audit"]


def test_a_plugin_without_working_commands_hides_no_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(extensions.commands([Failing(), Wrong(), Ledger()], ())) == {"ledger"}
    failing, wrong = capsys.readouterr().err.splitlines()
    assert failing == (
        "chancy: the plugin 'tests.failing' failed in commands: ImportError: rich is not "
        "installed; its commands are left out"
    )
    assert "'tests.wrong' failed in commands: TypeError: it returned ['audit']" in wrong


def test_the_help_has_the_commands_of_the_default_plugins() -> None:
    assert set(extensions.commands(defaults(), main.COMMANDS)) == set(main.DEFAULT)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quue", "No such command 'quue'. Did you mean 'queue'?"),
        ("workflows", "No such command 'workflows'. Did you mean 'workflow'?"),
        ("nothing", "No such command 'nothing'."),
        ("batch", "The plugin chancy.batches provides it: pass the --app of an application "
         "that uses this plugin, or set CHANCY_PLUGINS=chancy.batches."),
    ],
)  # fmt: skip
def test_a_command_that_is_not_there_is_explained(dsn: str, name: str, said: str) -> None:
    assert inside(name, "list", dsn=dsn, code=2).err.rstrip().endswith(said)


def test_it_is_known_which_of_our_plugins_has_a_command() -> None:
    settings: dict[str, dict[str, Any]] = {
        "chancy.reprioritize": {"rules": [{"every": 60}]},
        "chancy.encryption": {"keys": {"k1": new_key()}},
    }
    ours = {one.identifier for one in installed() if one.distribution == "chancy-queue"}
    names = ours - {plugin.get_identifier() for plugin in defaults()}
    made = [composition.make(name, settings.get(name)) for name in names]
    found = extensions.commands(made, main.COMMANDS)
    assert {name: plugin for name, (plugin, _) in found.items()} == main.ELSEWHERE
