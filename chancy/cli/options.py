"""Options that many commands share, and the application they lead to."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chancy.cli import output
from chancy.plugin.commands import as_json as as_json

T = TypeVar("T")

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.cli.settings import Settings
    from chancy.postgres.schema.component import Component

_OPTIONS = (
    click.option("--app", metavar="MODULE:NAME", help="The application, pkg.module:attribute."),
    click.option("--dsn", metavar="DSN", help="Where Postgres is: a URI or key=value pairs."),
    click.option("--schema", metavar="NAME", help="The schema of the tables (default: chancy)."),
    click.option("--listen-dsn", metavar="DSN", help="Reaches the server past a pooler."),
    click.option(
        "--driver", type=click.Choice(["asyncpg", "psycopg"]), help="What talks to Postgres."
    ),
)
#: For an application that is asked what it is made of, and connects to nothing.
_NOWHERE = "postgresql://"
#: The names of the options above.
SHARED = ("app", "dsn", "schema", "listen_dsn", "driver")


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """What a command works on, as its options say."""

    given: Mapping[str, str | None]

    def settings(self) -> Settings:
        """The options, and what the environment and pyproject.toml say beside them."""
        from chancy.cli import settings

        return settings.read(self.given)

    def arguments(self) -> list[str]:
        """The options again, for another process."""
        return [
            f"--{name.replace('_', '-')}={value}"
            for name, value in self.given.items()
            if value is not None
        ]

    def application(self) -> Chancy:
        """The application that is named, or one of the settings alone.

        A DSN from anywhere is what the application finds in ``CHANCY_DSN``. An option that the
        application then does not follow is an error.
        """
        from chancy.cli import application
        from chancy.errors import ConfigurationError

        settings = self.settings()
        if not settings.app:
            return application.make(settings)
        if settings.dsn:
            os.environ["CHANCY_DSN"] = settings.dsn
        chancy = application.find(settings.app)
        ignored = [
            f"--{name.replace('_', '-')}"
            for name, has in (("dsn", chancy.dsn), ("schema", chancy.schema))
            if self.given.get(name) not in (None, has)
        ]
        ignored += [
            f"--{n.replace('_', '-')}" for n in ("listen_dsn", "driver") if self.given.get(n)
        ]
        if ignored:
            raise ConfigurationError(
                f"{', '.join(ignored)}: the application {settings.app} sets this itself; "
                "leave it out, or leave out --app"
            )
        return chancy

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Chancy]:
        """The application, connected, on tables of this version."""
        async with self.application() as chancy:
            await chancy.check_tables()
            yield chancy

    def schema(self) -> str:
        """The schema alone, for what needs no database."""
        settings = self.settings()
        return self.application().schema if settings.app else settings.schema_name or "chancy"

    def unconnected(self) -> Chancy:
        """The application, for what needs no database: one of settings alone needs no DSN."""
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
        """Where the tables are, and what owns some beside the core."""
        chancy = self.application()
        return chancy.dsn, chancy.schema, chancy.hooks.components


def on_target(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an application; hand the command a `CommandTarget`.

    A group hands its own options down: ``chancy worker --dsn … list`` is heard.
    """

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> None:
        context = click.get_current_context()
        function(_target(context, kwargs), *args, **kwargs)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _target(context: click.Context, kwargs: dict[str, Any]) -> CommandTarget:
    """Take the shared options out of the arguments, and put them over those of a group."""
    own = {name: kwargs.pop(name) for name in SHARED}
    above = context.obj.given if isinstance(context.obj, CommandTarget) else {}
    target = CommandTarget({n: above.get(n) if own[n] is None else own[n] for n in SHARED})
    context.obj = target
    return target


def with_target(command: click.Command) -> click.Command:
    """Add the options that name an application to a plugin's command; ``obj`` is a `CommandTarget`.

    :raises ConfigurationError: it has one of these options itself.
    """
    import copy

    from chancy.errors import ConfigurationError

    made = copy.copy(command)
    if isinstance(made, click.Group):
        made.commands = {name: with_target(below) for name, below in made.commands.items()}
        return made
    shared = _shared()
    taken = {name for option in shared for name in option.opts}
    clash = sorted(taken & {name for own in command.params for name in own.opts})
    if clash:
        raise ConfigurationError(
            f"the command {command.name!r} has an option {clash[0]}, as all commands have: "
            "call it otherwise"
        )
    callback = command.callback

    def heard(*args: Any, **kwargs: Any) -> Any:
        _target(click.get_current_context(), kwargs)
        return callback(*args, **kwargs) if callback else None

    made.params = [*shared, *command.params]
    made.callback = heard
    return made


def _shared() -> list[click.Parameter]:
    return click.command()(on_target(lambda target: None)).params


class DatetimeType(click.ParamType[datetime]):
    """An aware moment in ISO 8601."""

    name = "moment"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a moment like 2030-01-31T09:00:00+01:00", param, ctx)
        if found.tzinfo is None:
            utc = found.replace(tzinfo=UTC).isoformat()
            self.fail(f"{value!r} has no time zone: write {utc} for UTC", param, ctx)
        try:
            return found.astimezone(UTC)
        except OverflowError:
            self.fail(f"{value!r} is in no year from 1 to 9999 of UTC", param, ctx)


MOMENT = DatetimeType()
