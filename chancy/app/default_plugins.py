"""Which plugins an application has: the one place of the core that knows the default ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chancy.checks import check_instances
from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.text import shown


def defaults() -> list[Plugin]:
    """The plugins that an application has unless it says otherwise."""
    from chancy.plugins import standard

    return standard()


def make(
    identifier: str, settings: Mapping[str, Any] | None = None, *, source: str = "settings"
) -> Plugin:
    """A default plugin, or an installed one, by its identifier.

    :param settings: of the plugin, as a file has them.
    :param source: where they were written, for errors.
    :raises ConfigurationError: there is none of this name, or a setting is wrong.
    """
    from chancy.plugin.discovery import made, named

    kinds = [type(plugin) for plugin in defaults()]
    return made(named(identifier, kinds), settings or {}, source=source)


def compose(plugins: Iterable[Plugin | str], *, bare: bool) -> list[Plugin]:
    """The default plugins with the given ones put over them, or the given ones alone."""
    if isinstance(plugins, str):
        raise ConfigurationError(f"plugins={plugins!r} is one text: pass a list, [{plugins!r}]")
    hint = "pass instances, not classes"
    if not isinstance(plugins, Iterable):
        raise ConfigurationError(f"plugins={shown(plugins)} must be a list of Plugin: {hint}")
    named = [make(one) if isinstance(one, str) else one for one in plugins]
    given = list(check_instances(named, Plugin, "plugins", hint))
    if bare:
        return given
    replaced = {plugin.get_identifier() for plugin in given}
    return [one for one in defaults() if one.get_identifier() not in replaced] + given
