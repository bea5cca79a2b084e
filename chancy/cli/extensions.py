"""The commands of plugins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import click

from chancy.cli.options import SHARED, CommandTarget, with_target
from chancy.containment import provided, refuse
from chancy.errors import ConfigurationError
from chancy.plugin.commands import complain
from chancy.plugin.plugin import Plugin


def find(name: str, *, words: Sequence[str], taken: Collection[str]) -> click.Command | None:
    """The plugin command of this name, or None.

    :param words: the command line after the program; its shared options name the application.
    :param taken: the names of chancy's own commands.
    """
    target = CommandTarget(_shared_options(words))
    owner, command = commands(target.unconnected().hooks.plugins, taken).get(name, (None, None))
    if command is None:
        return None
    try:
        return with_target(command)
    except ConfigurationError as error:
        raise ConfigurationError(f"the plugin {owner!r}: {error}") from None


def commands(
    plugins: Iterable[Plugin], taken: Collection[str]
) -> dict[str, tuple[str, click.Command]]:
    """The commands of plugins by name, each with the identifier of its plugin. If a plugin fails to
    return its commands, they are left out.

    :raises ConfigurationError: a command has a name that is taken.
    """
    found: dict[str, tuple[str, click.Command]] = {}
    for plugin in plugins:
        identifier = plugin.get_identifier()
        for command in _offered(identifier, plugin):
            name = command.name or ""
            if name in taken:
                raise ConfigurationError(
                    f"the plugin {identifier!r} has a command {name!r}, which is a command of "
                    "chancy: the plugin must rename it"
                )
            if name in found:
                raise ConfigurationError(
                    f"the plugins {found[name][0]!r} and {identifier!r} both have a command "
                    f"{name!r}: use one of them"
                )
            found[name] = identifier, command
    return found


def _offered(identifier: str, plugin: Plugin) -> Sequence[click.Command]:
    def call() -> Sequence[click.Command]:
        offered: Any = plugin.commands()
        listed = isinstance(offered, Sequence)
        if not listed or not all(isinstance(one, click.Command) for one in offered):
            refuse(offered, "it", "a list of commands")
        return list(offered)

    try:
        return provided(identifier, "commands", call)
    except ConfigurationError as error:
        context = click.get_current_context(silent=True)
        if context is None or not context.resilient_parsing:  # a completion may print nothing
            complain(f"{error}; its commands are left out")
        return ()


def _shared_options(words: Sequence[str]) -> dict[str, str | None]:
    """The values of the shared options in a command line; the last one of a name counts."""
    options = {f"--{name.replace('_', '-')}": name for name in SHARED}
    found: dict[str, str | None] = {}
    for word, following in zip_longest(words, words[1:]):
        if word == "--":
            break
        option, equals, value = word.partition("=")
        if option in options:
            found[options[option]] = value if equals else following
    return found
