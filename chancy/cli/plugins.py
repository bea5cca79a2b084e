"""The ``chancy plugins`` commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import click

from chancy.cli import output
from chancy.cli.options import CommandTarget, as_json, on_target

if TYPE_CHECKING:
    from chancy.plugin.plugin import Plugin


# The values of settings with a matching name are masked.
_SECRET = re.compile(r"password|secret|token|key|dsn|url", re.I)


@dataclass(frozen=True, slots=True)
class Listed:
    """A plugin that the application uses, or that is available to it.

    :param settings: None if the plugin is not used; it was not imported then.
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
    """List the plugins of the application and the installed ones.

    \b
    Example:
      chancy plugins list --app shop.jobs:chancy
    """


@plugins.command("list")
@on_target
@as_json
def list_(target: CommandTarget, json_: bool) -> None:
    """List the plugins that the application uses, and those available to it.

    The application is --app, or one made from the settings. An installed plugin that it does not
    use is not imported; to use one, name it in `Chancy(plugins=[...])` or under `plugins` in the
    settings. Needs no database.

    \b
    Example:
      chancy plugins list
      chancy plugins list --json | jq '.[] | select(.used) | .plugin'
    """
    found = _found(target)
    if json_:
        output.script([asdict(listed) for listed in found])
        return
    output.table(
        ("plugin", "used", "from", "tables", "commands", "settings"),
        [
            (
                listed.plugin,
                listed.used,
                f"{listed.distribution} {listed.version or ''}".strip(),
                listed.component,
                ", ".join(listed.commands) or None,
                None if listed.settings is None else _shown(listed.settings),
            )
            for listed in found
        ],
    )


def _found(target: CommandTarget) -> list[Listed]:
    from chancy.app import default_plugins
    from chancy.cli.extensions import commands
    from chancy.cli.main import COMMANDS
    from chancy.plugin.discovery import installed

    app = target.unconnected()
    owned = commands(app.hooks.plugins, COMMANDS)
    origins: dict[str, tuple[str, str | None]] = {
        plugin.get_identifier(): ("chancy-queue", version("chancy-queue"))
        for plugin in default_plugins.defaults()
    }
    origins |= {entry.identifier: (entry.distribution, entry.version) for entry in installed()}
    used = [
        _used(
            plugin,
            origin=origins.get(plugin.get_identifier(), ("the application", None)),
            commands=tuple(
                name for name, (owner, _) in owned.items() if owner == plugin.get_identifier()
            ),
        )
        for plugin in app.hooks.plugins
    ]
    names = {listed.plugin for listed in used}
    others = [Listed(name, False, *origin) for name, origin in origins.items()]
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


def _shown(settings: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "none"
