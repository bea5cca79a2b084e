"""The addresses of the dashboard, and what is checked before a page is made."""

from __future__ import annotations

import hmac
import inspect
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chancy.errors import BrokerUnavailable, ChancyError, NotOpen
from chancy.plugins.dashboard.access import LOCAL, Action, Auth, Can, Person, refusal
from chancy.plugins.dashboard.live import Live
from chancy.plugins.dashboard.pages import PAGES
from chancy.plugins.dashboard.replica import replica_of
from chancy.plugins.dashboard.site import (
    Refused,
    Site,
    View,
    base_of,
    check_origin,
    read_form,
)
from chancy.plugins.dashboard.undertaking import close

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.plugins.dashboard import DashboardPlugin

logger = logging.getLogger("chancy.dashboard")

Endpoint = Callable[[Request], Awaitable[Response]]

#: Sent with every response. No page loads anything from elsewhere, runs a script or applies a style
#: that is written into it, or can be framed.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_AWAY = (
    "The database cannot be reached. Workers go on with the jobs that they run, and claim no "
    "others until it is back. Look at its server and its log; this page tries again every 5 s."
)
_CLOSED = (
    "The application is not open. The service must open it when it starts: give it "
    "lifespan=chancy_lifespan(chancy), or enter “async with chancy”. This page tries again every "
    "5 s."
)
_TITLES = {403: "Not allowed", 404: "Not found"}


def build(chancy: Chancy, plugin: DashboardPlugin, *, auth: Auth | None, can: Can) -> Guarded:
    """The ASGI application of a dashboard."""
    site = Site(
        chancy=chancy,
        auth=auth,
        can=can,
        masked=plugin.masked,
        secret=plugin.secret.encode() if plugin.secret else secrets.token_bytes(32),
        keep_audit_days=plugin.keep_audit_days,
        replica=replica_of(chancy, plugin.read_dsn),
    )
    live = Live(site)
    if site.replica is not None:
        chancy.before_close(site.replica.close)
    chancy.before_close(partial(close, site))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with chancy:
            await chancy.check_tables()
            yield
            await close(site)

    routes = [
        Route(f"/{path}", _endpoint(site, handler), methods=[method])
        for method, path, handler in (*PAGES, ("GET", "live", live.stream))
    ]
    files = StaticFiles(packages=[("chancy.plugins.dashboard", "static")])
    no_page = _endpoint(site, _no_page)

    async def not_found(request: Request, _: Exception) -> Response:
        if request.method == "GET":
            return await no_page(request)
        return PlainTextResponse("chancy: there is no such page\n", 404)

    handlers = {404: not_found, 405: not_found}
    app = Starlette(
        routes=[*routes, Mount("/static", files)], lifespan=lifespan, exception_handlers=handlers
    )
    app.router.redirect_slashes = False
    return Guarded(app, live)


class Guarded:
    """Adds the headers to every response.

    :param live: the streams of open pages.
    """

    def __init__(self, app: ASGIApp, live: Live) -> None:
        self._app = app
        self.live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = HEADERS | {"cache-control": "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in added.items()
                      if name.encode() not in present),
                ]  # fmt: skip
            await send(message)

        if scope["path"] in ("", scope.get("root_path", "").rstrip("/")):
            query = scope["query_string"].decode("latin-1")
            front = f"{base_of(Request(scope))}/" + (f"?{query}" if query else "")
            await RedirectResponse(front)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


def _endpoint(site: Site, handler: Callable[[View], Awaitable[Response]]) -> Endpoint:
    """Check who sends a request and whether the person may, then make the page."""

    async def endpoint(request: Request) -> Response:
        view: View | None = None
        try:
            person = await _person(site, request)
            if isinstance(person, Response):
                return person
            view = View(site, request, person)
            if request.method == "POST":
                check_origin(request)
                view.fields = await read_form(request)
                if not hmac.compare_digest(view.field("token").encode(), view.token.encode()):
                    raise Refused(
                        403, "this form is too old, or from another site: go back and reload it"
                    )
            view.require(Action.VIEW)
            return await handler(view)
        except Refused as error:
            return await _problem(site, request, view, error.status, str(error))
        except BrokerUnavailable as error:
            logger.warning("dashboard_page_failed path=%s: %s", request.url.path, error)
            title, why = "No database", _AWAY
            if isinstance(error, NotOpen):
                title, why = "Not open", _CLOSED
            return await _problem(site, request, view, 503, why, away=title)
        except ChancyError as error:
            return await _problem(site, request, view, 400, str(error))

    return endpoint


async def _person(site: Site, request: Request) -> Person | Response:
    if site.auth is None:
        if why := refusal(request):
            raise Refused(
                403,
                f"this request was refused, because {why}: without auth= the dashboard serves "
                "this machine only",
            )
        return LOCAL
    found: Any = site.auth(request)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        raise Refused(401, "you are not signed in")
    if not isinstance(found, Person | Response):
        raise TypeError(f"auth= must return a Person, a response or None, not {type(found)}")
    return found


async def _problem(
    site: Site,
    request: Request,
    view: View | None,
    status: int,
    message: str,
    *,
    away: str = "",
) -> Response:
    """The page of an error.

    :param away: the title, if the database cannot be read.
    """
    if view is None:  # without a user there is no menu: the message alone
        return PlainTextResponse(f"chancy: {message}\n", status)
    title = away or _TITLES.get(status, "Not done")
    message = f"{message[:1].upper()}{message[1:]}".removesuffix(".") + "."
    return await view.render("problem.html", status, title=title, message=message, away=away)


async def _no_page(_: View) -> Response:
    raise Refused(404, "there is no such page")
