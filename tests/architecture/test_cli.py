"""The command line explains itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click

from chancy.cli.main import cli
from tests.support.sources import ROOT


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from _commands(f"{path} {name}", found)


_TREE = dict(_commands("chancy", cli))


def test_the_tree_is_walked() -> None:
    assert {"chancy push", "chancy job show", "chancy worker health", "chancy demo"} <= _TREE.keys()


def test_each_command_has_help_and_an_example() -> None:
    for path, command in _TREE.items():
        text = command.help or ""
        assert text.strip(), f"{path}: a docstring is its help"
        example = text.partition("Example:\n")[2]
        assert path in example, f"an example that begins with `{path}`"
        assert "\b" in text, f"{path}: keeps the lines of the example as they are"


def test_each_option_has_help() -> None:
    silent = [
        f"{path} {option.name}"
        for path, command in _TREE.items()
        for option in command.params
        if isinstance(option, click.Option) and not (option.help or "").strip()
    ]
    assert silent == []


#: They run until they are interrupted, or print SQL.
_WITHOUT_JSON = {
    "chancy demo",
    "chancy migrate sql",
    "chancy top",
    "chancy worker",
    "chancy workflow export",  # a diagram
}


def test_each_command_prints_json_for_scripts() -> None:
    without = {
        path
        for path, command in _TREE.items()
        if "--json" not in {name for option in command.params for name in option.opts}
        and (not isinstance(command, click.Group) or command.invoke_without_command)
    }
    assert without == _WITHOUT_JSON


def test_the_top_tells_the_same_as_the_commands_without_loading_them() -> None:
    context = click.Context(cli)
    shown = cli.get_help(context)
    for name in cli.list_commands(context):
        assert f"  {name} " in shown
    assert cli.get_command(context, "nonsense") is None


def test_help_loads_no_command_and_nothing_heavy() -> None:
    program = (
        "import sys; from chancy.cli.main import cli; cli(['--help'], standalone_mode=False);"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stderr.split())
    assert "Exit codes" in done.stdout
    assert loaded.isdisjoint({"alembic", "asyncpg", "pydantic", "rich", "sqlalchemy"})
    commands = {name for name in loaded if name.startswith("chancy.cli.")}
    assert commands == {"chancy.cli.main", "chancy.cli.exits"}
