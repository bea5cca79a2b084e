"""The options that commands share, and the application they select."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chancy.cli import output
from chancy.errors import ConfigurationError
from chancy.plugin.commands import as_json as as_json
from chancy.plugin.commands import complain
from chancy.postgres.dsn import parse

T = TypeVar("T")

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.cli.settings import Settings
    from chancy.postgres.schema.component import Component

_OPTIONS = (
    click.option("--app", metavar="MODULE:NAME", help="The application, pkg.module:attribute."),
    click.option("--dsn", metavar="DSN", help="The Postgres database: a URI or key=value pairs."),
    click.option("--schema", metavar="NAME", help="The schema of the tables (default: chancy)."),
    click.option(
        "--listen-dsn", metavar="DSN", help="A direct connection for LISTEN, past a pooler."
    ),
    click.option(
        "--driver", type=click.Choice(["asyncpg", "psycopg"]), help="The Postgres driver."
    ),
)
#: The DSN of an application that is inspected and never connects.
_NOWHERE = "postgresql://"
#: The names of the options above.
SHARED = ("app", "dsn", "schema", "listen_dsn", "driver")


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The application that the shared options of a command select."""

    given: Mapping[str, str | None]

    def settings(self) -> Settings:
        """The options, merged with the environment and pyproject.toml."""
        from chancy.cli import settings

        return settings.read(self.given)

    def arguments(self) -> list[str]:
        """The options as command-line arguments for another process."""
        return [
            f"--{name.replace('_', '-')}={value}"
            for name, value in self.given.items()
            if value is not None
        ]

    def application(self) -> Chancy:
        """The application of ``--app``, or one made from the settings.

        A DSN from any source is put into ``CHANCY_DSN`` before the application is imported. An
        option that contradicts the application is an error.
        """
        from chancy.cli import application

        settings = self.settings()
        if not settings.app:
            return application.make(settings)
        if settings.dsn:
            os.environ["CHANCY_DSN"] = settings.dsn
        chancy = application.find(settings.app)
        ignored = [
            f"--{name.replace('_', '-')}"
            for name in ("dsn", "schema")
            if (given := self.given.get(name)) is not None and given != getattr(chancy, name)
        ]
        ignored += [
            f"--{n.replace('_', '-')}" for n in ("listen_dsn", "driver") if self.given.get(n)
        ]
        if ignored:
            raise ConfigurationError(
                f"{', '.join(ignored)}: the application {settings.app} takes another value, its "
                "own or the default; omit the option, or omit --app"
            )
        _warn_of_ignored(settings, chancy)
        return chancy

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Chancy]:
        """Open the application, and check that its tables are at this version."""
        async with self.application() as chancy:
            await chancy.check_tables()
            yield chancy

    def unconnected(self) -> Chancy:
        """The application, for commands that need no database. It needs no DSN if it is made
        from settings."""
        from chancy.cli import application

        settings = self.settings()
        return self.application() if settings.app else application.make(settings, dsn=_NOWHERE)

    def run(self, work: Callable[[Chancy], Awaitable[T]]) -> T:
        """Open the application, await the work, and close it."""

        async def main() -> T:
            async with self.opened() as chancy:
                return await work(chancy)

        return asyncio.run(main())

    def line(self, text: object) -> None:
        """Print a line for people."""
        output.line(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print aligned columns for people."""
        output.table(columns, rows)

    def script(self, value: object) -> None:
        """Print JSON for scripts."""
        output.script(value)

    def tables(self) -> tuple[str, str, tuple[Component, ...]]:
        """The DSN, the schema, and the components that own tables beside the core."""
        chancy = self.application()
        return chancy.dsn, chancy.schema, chancy.hooks.components


def _warn_of_ignored(settings: Settings, chancy: Chancy) -> None:
    """Warn of a database or a schema in the settings that the application does not follow.

    Otherwise a command changes another database than the one that the settings name.
    """
    context = click.get_current_context(silent=True)  # None: the shell completes a line
    if context is None or os.environ.get("CHANCY_WORKER_NUMBER", "1") != "1":
        return  # the first worker process has warned
    warned = context.find_root().meta.setdefault(__name__, set[str]())
    for key, value in (("dsn", settings.dsn), ("schema", settings.schema_name)):
        if not value or key in warned:
            continue
        own = getattr(chancy, key)
        if value != own and (key != "dsn" or _place(value) != _place(own)):
            warned.add(key)
            complain(
                f"{key} of the settings (CHANCY_{key.upper()} or pyproject.toml) has no effect: "
                f"the application {settings.app} takes another value, its own or the default"
            )


def _place(dsn: str) -> str | None:
    """The database of a DSN, which may be written in several ways; None: the DSN is invalid."""
    with contextlib.suppress(ConfigurationError):
        return parse(dsn).place
    return None


def on_target(function: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options, and pass the command a `CommandTarget`.

    A subcommand inherits the options of its group, as in ``chancy worker --dsn … list``.
    """

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> None:
        context = click.get_current_context()
        function(_target(context, kwargs), *args, **kwargs)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _target(context: click.Context, kwargs: dict[str, Any]) -> CommandTarget:
    """Remove the shared options from the arguments, and merge them with those of the group."""
    own = {name: kwargs.pop(name) for name in SHARED}
    above = context.obj.given if isinstance(context.obj, CommandTarget) else {}
    target = CommandTarget({n: above.get(n) if own[n] is None else own[n] for n in SHARED})
    context.obj = target
    return target


def with_target(command: click.Command) -> click.Command:
    """Add the shared options to a plugin's command, whose ``obj`` becomes a `CommandTarget`.

    :raises ConfigurationError: the command defines one of these options itself.
    """
    made = copy.copy(command)
    if isinstance(made, click.Group):
        made.commands = {name: with_target(below) for name, below in made.commands.items()}
        return made
    shared = click.command()(on_target(lambda target: None)).params
    taken = {name for option in shared for name in option.opts}
    clash = sorted(taken & {name for own in command.params for name in own.opts})
    if clash:
        raise ConfigurationError(
            f"the command {command.name!r} has an option {clash[0]}, which every command has: "
            "rename it"
        )
    callback = command.callback

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _target(click.get_current_context(), kwargs)
        return callback(*args, **kwargs) if callback else None

    made.params = [*shared, *command.params]
    made.callback = wrapped
    return made


# Not generic before click 8.4.
class DatetimeType(click.ParamType):  # type: ignore[type-arg]
    """A datetime with a time zone, in ISO 8601."""

    name = "datetime"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a datetime like 2030-01-31T09:00:00+01:00", param, ctx)
        if found.tzinfo is None:
            utc = found.replace(tzinfo=UTC).isoformat()
            self.fail(f"{value!r} has no time zone: write {utc} for UTC", param, ctx)
        try:
            return found.astimezone(UTC)
        except OverflowError:
            self.fail(f"{value!r} is outside the years 1 to 9999 in UTC", param, ctx)


DATETIME = DatetimeType()
