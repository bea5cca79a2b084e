"""Plugins that are installed: found by entry points, made when somebody names them.

Nothing runs because it is installed. What an application does not name is listed, and not
imported.
"""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.text import shown

if TYPE_CHECKING:
    from pydantic import BaseModel

#: Distributions name their plugins here: ``identifier = "package.module:Class"``.
GROUP = "chancy.plugins"


@dataclass(frozen=True, slots=True)
class Installed:
    """A plugin of a distribution, not imported."""

    identifier: str
    path: str
    distribution: str
    version: str


def installed() -> Sequence[Installed]:
    """Every plugin that a distribution names, by identifier."""
    found = {
        (point.name, point.value): Installed(
            point.name,
            point.value,
            point.dist.name if point.dist else "?",
            point.dist.version if point.dist else "?",
        )
        for point in metadata.entry_points(group=GROUP)
    }
    return sorted(found.values(), key=lambda one: (one.identifier, one.distribution))


def named(identifier: str, defaults: Iterable[type[Plugin]] = ()) -> type[Plugin]:
    """The class of a plugin, one of these or an installed one.

    :raises ConfigurationError: there is none of this name, or it cannot be imported.
    """
    known = {one.get_identifier(): one for one in defaults}
    if identifier in known:
        return known[identifier]
    there = installed()
    match [one for one in there if one.identifier == identifier]:
        case []:
            names = sorted({*known, *(one.identifier for one in there)})
            near = difflib.get_close_matches(identifier, names, n=1)
            raise ConfigurationError(
                f"there is no plugin {shown(identifier)}; "
                f"{f'did you mean {near[0]!r}? ' if near else ''}"
                f"There are: {', '.join(names) or 'none'}"
            )
        case [one]:
            return _imported(one)
        case several:
            raise ConfigurationError(
                f"the plugin {identifier!r} is in several distributions: "
                f"{', '.join(one.distribution for one in several)}; uninstall all but one"
            )


def _imported(one: Installed) -> type[Plugin]:
    where = f"the plugin {one.identifier!r} of {one.distribution} {one.version} ({one.path})"
    try:
        found: object = metadata.EntryPoint(one.identifier, one.path, GROUP).load()
    except Exception as error:
        raise ConfigurationError(
            f"{where} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise ConfigurationError(f"{where} is {shown(found)}, and not a class below Plugin")
    if found.get_identifier() != one.identifier:
        raise ConfigurationError(
            f"{where} calls itself {found.get_identifier()!r}: its distribution must name it so"
        )
    return found


def settings_of(kind: type[Plugin]) -> type[BaseModel]:
    """The model of a plugin's settings: its own, or one made of its constructor's parameters."""
    if kind.Settings is not None:
        return kind.Settings
    from pydantic import ConfigDict, create_model

    hints = typing.get_type_hints(kind.__init__, include_extras=True)
    fields: dict[str, Any] = {
        one.name: (hints.get(one.name, Any), ... if one.default is one.empty else one.default)
        for one in inspect.signature(kind).parameters.values()
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    }
    config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(f"{kind.__name__}Settings", __config__=config, **fields)


def made(kind: type[Plugin], settings: Mapping[str, Any], *, source: str = "settings") -> Plugin:
    """A plugin with settings that somebody wrote into a file.

    :param source: where they were written, for errors.
    :raises ConfigurationError: which setting is wrong, and why; never its value.
    """
    from pydantic import ValidationError

    where = f"{source}: the plugin {kind.get_identifier()!r}"
    model = settings_of(kind)
    for name in settings:
        if name not in model.model_fields:
            near = difflib.get_close_matches(name, model.model_fields, n=1)
            raise ConfigurationError(
                f"{where} has no setting {shown(name)}; "
                f"{f'did you mean {near[0]!r}? ' if near else ''}"
                f"It has: {', '.join(model.model_fields) or 'none'}"
            )
    try:
        checked = model.model_validate(dict(settings))
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False, include_context=False)
        raise ConfigurationError(
            "; ".join(
                f"{where}, setting {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong
            )
        ) from None
    given = {name: getattr(checked, name) for name in model.model_fields if name in settings}
    try:
        return kind(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
