"""Installed plugins: found by entry point, imported and created when an application names them.

Installing a plugin does not run it. A plugin that no application names is listed, but not imported.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from chancy.checks import reasons
from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.text import choices, shown

if TYPE_CHECKING:
    from pydantic import BaseModel

#: The entry point group of plugins: ``identifier = "package.module:Class"``.
GROUP = "chancy.plugins"


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed plugin, which is not imported yet."""

    identifier: str
    path: str
    distribution: str
    version: str


def installed() -> Sequence[Installed]:
    """Every installed plugin, ordered by identifier."""
    found = {
        (point.name, point.value): Installed(
            point.name,
            point.value,
            point.dist.name if point.dist else "?",
            point.dist.version if point.dist else "?",
        )
        for point in metadata.entry_points(group=GROUP)
    }
    return sorted(found.values(), key=lambda entry: (entry.identifier, entry.distribution))


def named(identifier: str, defaults: Iterable[type[Plugin]] = ()) -> type[Plugin]:
    """The class of a plugin, from ``defaults`` or an installed distribution.

    :raises ConfigurationError: there is no plugin with this name, or it cannot be imported.
    """
    known = {kind.get_identifier(): kind for kind in defaults}
    if identifier in known:
        return known[identifier]
    entries = installed()
    match [entry for entry in entries if entry.identifier == identifier]:
        case []:
            names = sorted({*known, *(entry.identifier for entry in entries)})
            raise ConfigurationError(
                f"there is no plugin {shown(identifier)}; "
                f"{choices(identifier, names, 'Available plugins')}"
            )
        case [entry]:
            return _imported(entry)
        case several:
            raise ConfigurationError(
                f"the plugin {identifier!r} is in several distributions: "
                f"{', '.join(entry.distribution for entry in several)}; uninstall all but one"
            )


def _imported(entry: Installed) -> type[Plugin]:
    where = (
        f"the plugin {entry.identifier!r} of {entry.distribution} {entry.version} ({entry.path})"
    )
    try:
        found: object = metadata.EntryPoint(entry.identifier, entry.path, GROUP).load()
    except Exception as error:
        raise ConfigurationError(
            f"{where} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise ConfigurationError(f"{where} is {shown(found)}, not a subclass of Plugin")
    if found.get_identifier() != entry.identifier:
        raise ConfigurationError(
            f"{where} has the identifier {found.get_identifier()!r}: its entry point must have "
            "the same name"
        )
    return found


def settings_of(kind: type[Plugin]) -> type[BaseModel]:
    """The model of a plugin's settings: its own, or one for its constructor's parameters."""
    if kind.Settings is not None:
        return kind.Settings
    from pydantic import ConfigDict, create_model

    hints = _hints(kind.__init__)
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(f"{kind.__name__}Settings", __config__=config, **fields)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of parameters; Any if a name is imported only for type checkers."""
    found: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(function).items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(one, function.__globals__, include_extras=True)
        except NameError:
            found[name] = Any
    return found


def made(kind: type[Plugin], settings: Mapping[str, Any], *, source: str = "settings") -> Plugin:
    """Create a plugin with settings from a file.

    :param source: the origin of the settings, for errors.
    :raises ConfigurationError: a setting is invalid. The error has its name and the reason, but
        never its value.
    """
    from pydantic import ValidationError

    where = f"{source}: the plugin {kind.get_identifier()!r}"
    model = settings_of(kind)
    for name in settings:
        if name not in model.model_fields:
            raise ConfigurationError(
                f"{where} has no setting {shown(name)}; "
                f"{choices(name, model.model_fields, 'Its settings')}"
            )
    try:
        checked = model.model_validate(dict(settings))
        # Iterators are checked when the constructor consumes them.
        return kind(**{name: getattr(checked, name) for name in settings})
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except ValidationError as error:
        raise ConfigurationError(f"{where}, setting {reasons(error)}") from None
