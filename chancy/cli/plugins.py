"""``chancy plugins``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import click

from chancy.cli import output
from chancy.cli.options import CommandTarget, as_json, on_target

if TYPE_CHECKING:
    from chancy.plugin.plugin import Plugin


# A setting by such a name is not shown.
_SECRET = re.compile(r"password|secret|token|key|dsn|url", re.I)


@dataclass(frozen=True, slots=True)
class Listed:
    """A plugin that is used, or could be.

    :param settings: None: it is not used, and was not imported.
    """

    plugin: str
    used: bool
    distribution: str
    version: str | None
    component: str | None = None
    commands: tuple[str, ...] = ()
    settings: Mapping[str, object] | None = None


@click.group()
def plugins() -> None:
    """List the plugins: those that the application uses, and those that are installed.

    \b
    Example:
      chancy plugins list --app shop.jobs:chancy
    """


@plugins.command("list")
@on_target
@as_json
def list_(target: CommandTarget, json_: bool) -> None:
    """List the plugins that the application uses, and those that it could.

    The application is --app, or one of the settings alone. Installed plugins are not imported
    unless it uses them; to use one, name it in `Chancy(plugins=[...])` or under `plugins` in the
    settings. Needs no database.

    \b
    Example:
      chancy plugins list
      chancy plugins list --json | jq '.[] | select(.used) | .plugin'
    """
    found = _found(target)
    if json_:
        names = [field.name for field in fields(Listed)]
        output.script([{name: getattr(one, name) for name in names} for one in found])
        return
    output.table(
        ("plugin", "used", "from", "tables", "commands", "settings"),
        [
            (
                one.plugin,
                one.used,
                f"{one.distribution} {one.version or ''}".strip(),
                one.component,
                ", ".join(one.commands) or None,
                None if one.settings is None else _shown(one.settings),
            )
            for one in found
        ],
    )


def _found(target: CommandTarget) -> list[Listed]:
    from chancy.app import default_plugins as composition
    from chancy.cli.extensions import commands
    from chancy.cli.main import COMMANDS
    from chancy.plugin.discovery import installed

    app = target.unconnected()
    owned = commands(app.hooks.plugins, COMMANDS)
    there = {one.identifier: (one.distribution, one.version) for one in installed()}
    version = _version()
    ours = {plugin.get_identifier(): ("chancy", version) for plugin in composition.defaults()}
    used = [
        _used(
            plugin,
            origin=(ours | there).get(plugin.get_identifier(), ("the application", None)),
            commands=tuple(
                name for name, (owner, _) in owned.items() if owner == plugin.get_identifier()
            ),
        )
        for plugin in app.hooks.plugins
    ]
    names = {one.plugin for one in used}
    others = [Listed(name, False, *origin) for name, origin in (ours | there).items()]
    return used + sorted((o for o in others if o.plugin not in names), key=lambda o: o.plugin)


def _used(plugin: Plugin, *, origin: tuple[str, str | None], commands: tuple[str, ...]) -> Listed:
    from chancy.plugin.discovery import settings_of

    migrations = plugin.migrations()
    return Listed(
        plugin.get_identifier(),
        True,
        *origin,
        component=migrations.name if migrations else None,
        commands=commands,
        settings={
            name: "***" if _SECRET.search(name) else _plain(getattr(plugin, name))
            for name in settings_of(type(plugin)).model_fields
            if hasattr(plugin, name)
        },
    )


def _plain(value: object) -> object:
    return value if isinstance(value, None | bool | int | float | str) else str(value)


def _version() -> str:
    from importlib.metadata import version

    return version("chancy")


def _shown(settings: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "none"
