"""Dashboard: shows an application in a browser, and lets people control it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.plugins.dashboard.access import Action, Auth, BasicAuth, Can, Person, Role, by_role
from chancy.plugins.dashboard.redaction import MASKED, Masked
from chancy.postgres.schema.component import Migrations

if TYPE_CHECKING:
    import click

    from chancy.app.app import Chancy

__all__ = [
    "MASKED",
    "Action",
    "BasicAuth",
    "Dashboard",
    "DashboardPlugin",
    "Person",
    "Role",
    "by_role",
]


class DashboardPlugin(Plugin):
    """Owns the audit of the dashboard, its commands and its settings.

    It costs a worker only an index entry for each scheduled job. The dashboard runs where you mount
    it, or under ``chancy dashboard``.

    :param auth: returns the person of a request; see `Dashboard`.
    :param can: whether a person may do something; see `Dashboard`.
    :param masked: patterns of names whose values are masked, or a function of the name.
    :param secret: signs the tokens of forms; the same in all processes that serve the dashboard.
        Default: a new one for each process.
    :param keep_audit_days: days for which rows of the audit are kept.
    :param read_dsn: a replica of the database, from which lists and counts are read. Single jobs
        and actions use the database itself, and so do lists while the replica is unavailable.
    :raises ConfigurationError: a setting is out of range.
    """

    def __init__(
        self,
        *,
        auth: Auth | None = None,
        can: Can = by_role,
        masked: Sequence[str] | Callable[[str], bool] = MASKED,
        secret: str | None = None,
        keep_audit_days: float = 365.0,
        read_dsn: str | None = None,
    ) -> None:
        check_number(keep_audit_days, "keep_audit_days", 1, 36_500, whole=False, unit="days")
        if secret is not None and len(secret) < 16:
            raise ConfigurationError("secret must have at least 16 characters")
        self.auth = auth
        self.can = can
        self.masked = Masked(masked)
        self.secret = secret
        self.keep_audit_days = keep_audit_days
        self.read_dsn = read_dsn

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.dashboard"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="dashboard",
            package="chancy.plugins.dashboard.migrations",
            head="0001",
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.dashboard.commands import audit, dashboard

        return [dashboard, audit]


@contextmanager
def naming_extra() -> Generator[None]:
    """Raise `ConfigurationError` if a library of the extra ``dashboard`` cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "starlette", "uvicorn"):
            raise
        raise ConfigurationError(
            f"the dashboard needs {error.name}: pip install 'chancy-queue[dashboard]'"
        ) from error


class Dashboard:
    """The dashboard of an application, as an ASGI application.

    Mount it under any path of a Starlette or FastAPI application, or serve it on its own; then it
    opens and closes ``chancy``. If you mount it, ``chancy`` must be open; bulk actions stop after
    their current batch when ``chancy`` closes.

    :param chancy: an application with the plugin ``chancy.dashboard``, whose settings are used.
    :param auth: overrides that of the plugin. A function of the Starlette request, async or not,
        that returns a `Person`; None to refuse the request; or a response, such as a redirect to a
        login. Without ``auth``, only requests from this machine are served.
    :param can: overrides that of the plugin. A function of a person, an `Action` and its subject,
        such as ``queue:mail``; called for each control that is shown and for each action.
    :raises ConfigurationError: the application lacks the plugin, or a library is not installed.
    """

    def __init__(self, chancy: Chancy, *, auth: Auth | None = None, can: Can | None = None) -> None:
        plugin = next(
            (one for one in chancy.hooks.plugins if isinstance(one, DashboardPlugin)), None
        )
        if plugin is None:
            raise ConfigurationError(
                "this application lacks the plugin chancy.dashboard, which owns the audit: pass "
                'Chancy(plugins=["chancy.dashboard"]) and run `chancy migrate upgrade --app …`'
            )
        with naming_extra():
            from chancy.plugins.dashboard.routes import build
        self.chancy = chancy
        #: Whether requests from other machines can be served.
        self.authenticates = (auth or plugin.auth) is not None
        settings: Any = plugin  # type checkers see the symlink to this folder as another module
        self._serve = build(chancy, settings, auth=auth or plugin.auth, can=can or plugin.can)

    async def end_streams(self) -> None:
        """End the streams of open pages, for which a server that stops would wait."""
        await self._serve.live.end()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._serve(scope, receive, send)
