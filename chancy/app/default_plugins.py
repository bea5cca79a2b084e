"""The plugins of an application. No other module of the core refers to the default plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chancy.checks import check_instances
from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.text import shown


def defaults() -> list[Plugin]:
    """The plugins that an application has by default."""
    from chancy.plugins import standard

    return standard()


def make(
    identifier: str, settings: Mapping[str, Any] | None = None, *, source: str = "settings"
) -> Plugin:
    """Create a default or an installed plugin by its identifier.

    :param settings: the settings of the plugin, as read from a file.
    :param source: the origin of the settings, for errors.
    :raises ConfigurationError: there is no such plugin, or a setting is invalid.
    """
    from chancy.plugin.discovery import made, named

    kinds = [type(plugin) for plugin in defaults()]
    return made(named(identifier, kinds), settings or {}, source=source)


def compose(plugins: Iterable[Plugin | str], *, bare: bool) -> list[Plugin]:
    """The default plugins with ``plugins`` added or replaced; with ``bare`` only ``plugins``."""
    if isinstance(plugins, str):
        raise ConfigurationError(f"plugins={plugins!r} is a string: pass a list, [{plugins!r}]")
    hint = "pass instances, not classes"
    if not isinstance(plugins, Iterable):
        raise ConfigurationError(f"plugins={shown(plugins)} must be a list of Plugin: {hint}")
    made = [make(plugin) if isinstance(plugin, str) else plugin for plugin in plugins]
    own = list(check_instances(made, Plugin, "plugins", hint))
    if bare:
        return own
    replaced = {plugin.get_identifier() for plugin in own}
    return [plugin for plugin in defaults() if plugin.get_identifier() not in replaced] + own
