"""Settings from options, the environment and pyproject.toml; each source is validated alone."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import click
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from chancy.errors import ConfigurationError
from chancy.text import choices


def _by_name(value: object) -> object:
    """Turn a list of plugins into a mapping of plugins without settings."""
    return {name: {} for name in value} if isinstance(value, list | tuple) else value


class Settings(BaseModel):
    """The settings that select the application of a command. Every field is optional."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    app: str | None = None
    dsn: str | None = Field(default=None, repr=False)
    schema_name: str | None = Field(default=None, alias="schema")
    listen_dsn: str | None = Field(default=None, repr=False)
    driver: Literal["asyncpg", "psycopg"] | None = None
    #: Modules of jobs that a worker imports.
    imports: tuple[str, ...] = ()
    #: Patterns of functions that jobs may name without being registered.
    allow: tuple[str, ...] = ()
    #: The plugins of an application made from settings: their settings by identifier.
    plugins: Annotated[Mapping[str, Mapping[str, Any]], BeforeValidator(_by_name)] = {}
    #: The options of these commands.
    worker: Mapping[str, Any] = {}
    dashboard: Mapping[str, Any] = {}

    @classmethod
    def of(cls, values: Mapping[str, Any], *, source: str) -> Self:
        """Validate the values of one source. The error names the source, never a value."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigurationError(
                "; ".join(
                    _explain(source, detail["type"], detail["loc"], detail["msg"], cls.keys())
                    for detail in error.errors(include_input=False, include_url=False)
                )
            ) from None

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """The keys of a source."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    def over(self, other: Settings) -> Settings:
        """These settings, with the unset fields taken from ``other``.

        The plugins of both are merged. A plugin's own settings come from one of them: from these
        settings if they have any for it.
        """
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        own = {name: values for name, values in self.plugins.items() if values}
        plugins = {**self.plugins, **other.plugins, **own}
        return other.model_copy(update=fields | {"plugins": plugins})


_LISTS = ("imports", "allow", "plugins")
#: The commands whose options pyproject.toml may set, each in a table of its name.
TABLES = ("worker", "dashboard")
KEYS = tuple(filter(lambda key: key not in TABLES, Settings.keys()))


def read(options: Mapping[str, str | None]) -> Settings:
    """Merge the sources: options override the environment, which overrides pyproject.toml.

    :raises ConfigurationError: a key is unknown, or a value has the wrong type.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return (
        Settings.of(given, source="the options")
        .over(Settings.of(_environment(), source="the environment"))
        .over(_file())
    )


def options_of(name: str, parameters: Sequence[click.Parameter]) -> Mapping[str, Any]:
    """The options of a command in pyproject.toml, by the names of its parameters.

    :param name: one of `TABLES`.
    :raises ConfigurationError: the command has no such option, or it does not take the value.
    """
    found = _file()
    options = {
        option.removeprefix("--"): one.name
        for one in parameters
        if one.name not in KEYS
        for option in one.opts
    }
    values: dict[str, Any] = {}
    for key, value in getattr(found, name).items():
        parameter = options.get(key.replace("_", "-"))
        if parameter is None:
            raise ConfigurationError(
                _explain(f"[tool.chancy.{name}]", "extra_forbidden", (key,), "", [*options])
            )
        one = next(one for one in parameters if one.name == parameter)
        if isinstance(value, list) != one.multiple:
            value = [value] if one.multiple else ",".join(map(str, value))
        values[parameter] = value
        _check(value, one, f"[tool.chancy.{name}] {key}")
    return values


def _check(value: object, parameter: click.Parameter, place: str) -> None:
    """Raise unless an option takes a value. Click would name the option and its variable."""
    kind = parameter.type
    for one in value if isinstance(value, list) else [value]:
        flag = isinstance(kind, click.types.BoolParamType)
        if not isinstance(one, str) and (
            isinstance(one, bool) != flag or not isinstance(one, int | float)
        ):
            raise ConfigurationError(f"{place}: {one!r} is not of the type {kind.name}")
        try:
            kind.convert(one, parameter, None)
        except click.BadParameter as error:
            raise ConfigurationError(f"{place}: {error.message}") from None


def _environment() -> dict[str, Any]:
    """Read the ``CHANCY_`` variables. An empty variable counts as unset."""
    found: dict[str, Any] = {}
    for key in KEYS:
        text = os.environ.get(f"CHANCY_{key.upper()}", "")
        if text:
            parts = [part.strip() for part in text.split(",")]
            found[key] = [part for part in parts if part] if key in _LISTS else text
    return found


def _file() -> Settings:
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return Settings.of(_table(path), source=str(path))
    return Settings()


def _table(path: Path) -> Mapping[str, Any]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("chancy", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: tool.chancy must be a table, [tool.chancy]")
    return found


def _explain(
    source: str, kind: str, place: tuple[int | str, ...], message: str, keys: Sequence[str]
) -> str:
    key = ".".join(map(str, place))
    where = f"{source}: [tool.chancy]" if source.endswith(".toml") else f"{source}:"
    if kind != "extra_forbidden":
        return f"{where} {key}: {message}"
    return f"{where} has an unknown key {key!r}; {choices(key, keys, 'Known keys')}"
