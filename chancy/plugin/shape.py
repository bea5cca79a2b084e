"""Checks that each hook that a plugin overrides has the right signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.text import shown

_HOOKS: Mapping[str, Callable[..., Any]] = {
    name: value
    for name, value in vars(Plugin).items()
    if inspect.isfunction(value) and not name.startswith("_")
}


def check_hooks(identifier: str, plugin: Plugin) -> None:
    """Raise `ConfigurationError` for a hook that is not a method, that does not take its arguments,
    that is a coroutine function but must be sync, or the reverse."""
    for name, hook in _HOOKS.items():
        if getattr(type(plugin), name, None) is not hook:
            expected = f"{'async ' * inspect.iscoroutinefunction(hook)}def {name}{_written(hook)}"
            if (wrong := _wrong(getattr(plugin, name), hook)) is not None:
                raise ConfigurationError(
                    f"the plugin {identifier!r}: {name} {wrong}: write it as `{expected}`"
                )


def _wrong(override: object, hook: Callable[..., Any]) -> str | None:
    if not callable(override):
        return f"is {shown(override)} and not a method"
    inner = inspect.unwrap(override)
    if inspect.iscoroutinefunction(hook) and inspect.isfunction(getattr(inner, "__func__", inner)):
        if not inspect.iscoroutinefunction(inner):
            return "must be a coroutine function"
    elif inspect.iscoroutinefunction(inner):
        return "must not be a coroutine function"
    try:
        signature = inspect.signature(override)
    except (TypeError, ValueError):  # not a Python function
        return None
    positional: list[None] = []
    named: dict[str, None] = {}
    for parameter in list(inspect.signature(hook).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = None
        else:
            positional.append(None)
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        return f"cannot be called as it will be ({error})"
    return None


def _written(hook: Callable[..., Any]) -> str:
    """The parameters of a hook, without their annotations."""
    parameters = inspect.signature(hook).parameters.values()
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain))
