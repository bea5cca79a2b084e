"""What the pages share: the application, the templates, and one request with its person."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from chancy.broker.optional import SqlStore, sql_stores
from chancy.plugin.finding import Finding
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Panel
from chancy.plugins.batch import Batches
from chancy.plugins.cron import Cron
from chancy.plugins.dashboard.access import Action, Auth, Can, Person, by_role
from chancy.plugins.dashboard.audit import Audit
from chancy.plugins.dashboard.redaction import Masked
from chancy.plugins.dashboard.replica import Replica
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.limits import GlobalLimits
from chancy.plugins.workflow import Workflows
from chancy.queue.queue import DEFAULT_BROKER
from chancy.text import storable

if TYPE_CHECKING:
    from chancy.app.app import Chancy

P = TypeVar("P", bound=Plugin)
T = TypeVar("T")

#: Counts stop here.
MOST = 10_000
#: Bounds of a form.
_FORM_BYTES, _FORM_FIELDS = 131_072, 1_100
COOKIE, THEME = "chancy_dashboard", "chancy_theme"
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_BACK = re.compile(r"[a-z?][A-Za-z0-9._~/:%?&=+*-]{0,1000}")


#: The most answers that are kept.
_ANSWERS = 256


class Looks:
    """Answers of queries that viewers share, each kept for some seconds. Callers of the same key
    share one query."""

    def __init__(self) -> None:
        #: When each look began, the seconds that its answer is kept, and the look.
        self._kept: dict[Hashable, tuple[float, float, asyncio.Task[Any]]] = {}

    async def get(
        self, key: Hashable, look: Callable[[], Awaitable[T]], *, keep_s: float = 1.0
    ) -> T:
        """The answer for a key, at most ``keep_s`` seconds old. An error is raised to all callers
        that wait for it, and is not kept."""
        now = time.monotonic()
        at, _, task = self._kept.get(key, (0.0, 0.0, None))
        if task is None or (task.done() and (now - at > keep_s or _failed(task))):
            task = asyncio.ensure_future(look())
            self._kept.pop(key, None)
            # Answers are large: each job has up to 1 MiB of arguments.
            self._kept = {
                known: kept
                for known, kept in self._kept.items()
                if not kept[2].done() or now - kept[0] <= kept[1]
            }
            self._kept[key] = now, keep_s, task
            while len(self._kept) > _ANSWERS:
                self._kept.pop(next(iter(self._kept)))
        # A viewer who goes away must not take the answer from the others.
        found: T = await asyncio.shield(task)
        return found

    def forget(self) -> None:
        """Drop all answers, after something was changed."""
        self._kept.clear()

    async def close(self) -> None:
        """Cancel the queries that are running."""
        tasks = [task for _, _, task in self._kept.values()]
        self.forget()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


class Refused(Exception):
    """A request that is answered with an error page."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One dashboard.

    :param secret: signs the tokens of forms.
    :param replica: where lists and counts are read; None: the database itself.
    """

    chancy: Chancy
    auth: Auth | None
    can: Can
    masked: Masked
    secret: bytes
    keep_audit_days: float
    replica: Replica | None
    looks: Looks = field(default_factory=Looks)
    #: The actions in batches that go on.
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    #: The last findings of the checkup.
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def store(self) -> SqlStore:
        """The database."""
        control = self.chancy.control
        if not isinstance(control, SqlStore):
            raise Refused(501, "the dashboard needs an application on Postgres")
        return control

    @property
    def lists(self) -> SqlStore:
        """Where the lists and counts of the database are read: may be behind it."""
        return self.replica or self.store

    @property
    def stores(self) -> Mapping[str, SqlStore]:
        """Where jobs are listed and counted, by the name of their broker."""
        return {**sql_stores(self.chancy.broker), DEFAULT_BROKER: self.lists}

    @property
    def audit(self) -> Audit:
        return Audit(self.store, self.keep_audit_days)

    def plugin(self, kind: type[P]) -> P | None:
        """The plugin of a class, if the application uses it."""
        return next((one for one in self.chancy.hooks.plugins if isinstance(one, kind)), None)

    @property
    def has_letters(self) -> bool:
        return self.plugin(DeadLetters) is not None

    @property
    def has_limits(self) -> bool:
        return self.plugin(GlobalLimits) is not None

    @property
    def menu(self) -> Sequence[tuple[str, str]]:
        """The paths and names of the pages that this application has."""
        pages: list[tuple[str, str, type[Plugin] | None]] = [
            ("", "Overview", None),
            ("queues", "Queues", None),
            ("jobs", "Jobs", None),
            ("dead-letters", "Dead letters", DeadLetters),
            ("workers", "Workers", None),
            ("cron", "Cron", Cron),
            ("workflows", "Workflows", Workflows),
            ("batches", "Batches", Batches),
            ("limits", "Limits", GlobalLimits),
            ("checkup", "Checkup", None),
            ("audit", "Audit", None),
        ]
        own = [(path, name) for path, name, kind in pages if kind is None or self.plugin(kind)]
        return [*own, *((f"panels/{name}", panel.title) for name, panel in self.panels.items())]

    @property
    def panels(self) -> Mapping[str, Panel]:
        """The panels of plugins that have no page of their own."""
        return {
            panel.name: panel
            for plugin in self.chancy.hooks.plugins
            if not isinstance(plugin, DeadLetters | Cron | Workflows | Batches)
            for panel in plugin.panels()
        }


class View:
    """One request, with the person who sends it."""

    def __init__(self, site: Site, request: Request, person: Person) -> None:
        self.site = site
        self.request = request
        self.person = person
        #: The fields of a form, in order.
        self.fields: Sequence[tuple[str, str]] = ()
        self.base = base_of(request)
        self.now = datetime.now(UTC)
        self._shows: dict[str, bool] = {}
        cookie = request.cookies.get(COOKIE, "")
        self._new_cookie = not re.fullmatch(r"[\w-]{43}", cookie)
        self._cookie = secrets.token_urlsafe(32) if self._new_cookie else cookie

    # Input

    def query(self, name: str) -> str | None:
        """A parameter of the address; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def field(self, name: str) -> str:
        """A field of the form."""
        return next((value for key, value in self.fields if key == name), "").strip()

    def every(self, name: str) -> list[str]:
        """All fields of the form with this name."""
        return [value for key, value in self.fields if key == name]

    def path(self, name: str) -> str:
        """A parameter of the path."""
        return str(self.request.path_params[name])

    def id(self) -> UUID:
        """The id in the path."""
        return uuid_of(self.path("id"))

    def plugin(self, kind: type[P]) -> P:
        """The plugin of a class, which the page needs."""
        found = self.site.plugin(kind)
        if found is None:
            raise Refused(404, f"this application does not use the plugin {kind.get_identifier()}")
        return found

    # Access

    @property
    def token(self) -> str:
        """The token of a form: it is valid for this person in this browser."""
        text = f"{self._cookie}\0{self.person.name}".encode()
        return hmac.new(self.site.secret, text, hashlib.sha256).hexdigest()

    def allows(self, action: Action, subject: str = "") -> bool:
        return bool(self.site.can(self.person, action, subject))

    @property
    def menu(self) -> Sequence[tuple[str, str]]:
        """The paths and names of the pages that the person may see."""
        audit = self.allows(Action.VIEW_AUDIT)
        return [(path, name) for path, name in self.site.menu if audit or path != "audit"]

    def shows(self, func: str) -> bool:
        """Whether the person may see arguments, results and meta of a function's jobs."""
        if func not in self._shows:
            self._shows[func] = self.allows(Action.VIEW_ARGUMENTS, f"func:{func}")
        return self._shows[func]

    @property
    def searches(self) -> Callable[[str], bool] | None:
        """`shows` for a search of many functions; None: it allows all of them."""
        return None if self.site.can is by_role and self.shows("") else self.shows

    def mine(self, action: Action, queues: Iterable[str]) -> set[str]:
        """The queues for which the person may do this."""
        return {queue for queue in set(queues) if self.allows(action, f"queue:{queue}")}

    def require(self, action: Action, subject: str = "") -> None:
        """Refuse the request unless the person may do this."""
        if not self.allows(action, subject):
            what = f"{action} {subject}".strip()
            raise Refused(403, f"{self.person.name} may not do this: {what}")

    # Output

    def url(self, path: str = "", **query: object) -> str:
        """An address below the dashboard; parameters that are None or empty are left out."""
        given = {key: str(value) for key, value in query.items() if value not in (None, "")}
        return f"{self.base}/{quote(path)}" + (f"?{urlencode(given)}" if given else "")

    def back(self, default: str = "") -> str:
        """The page that the form was on, as a path below the dashboard."""
        given = self.field("back")
        ok = _BACK.fullmatch(given) and "//" not in given and ".." not in given
        return f"{self.base}/{given}" if ok else self.url(default)

    def done(self, entry: int, default: str = "") -> Response:
        """Return to the page of the form, which shows the entry of the audit."""
        self.site.looks.forget()
        back = re.sub(r"[?&]done=\d+", "", self.back(default))
        return RedirectResponse(f"{back}{'&' if '?' in back else '?'}done={entry}", 303)

    async def render(self, template: str, status: int = 200, **context: Any) -> Response:
        """A page."""
        done = self.query("done")
        entry = None
        if done and not context.get("away") and done.isdecimal() and len(done) < 19:
            entry = await self.site.audit.get(int(done))
            if entry is not None and entry.who != self.person.name:
                entry = None
        here = path_of(self.request)
        query = self.request.url.query
        text = TEMPLATES.get_template(template).render(
            view=self,
            url=self.url,
            here=here,
            back=f"{here}?{query}" if query else here,
            done=entry,
            behind_s=self.site.replica and await self.site.replica.behind_s(),
            theme=self._theme(),
            **context,
        )
        response = HTMLResponse(text, status)
        self.set_cookie(response)
        return response

    async def confirm(self, what: str, default: str = "", effect: str = "") -> Response | None:
        """The page that asks before more than one job is changed, with the fields of the form.
        None: it was answered.

        :param default: the page to return to.
        :param effect: what it does, in a sentence or two.
        """
        if self.field("confirmed"):
            return None
        own = ("token", "back")
        return await self.render(
            "confirm.html",
            title="Sure?",
            what=what,
            effect=effect,
            path=path_of(self.request),
            fields=[(name, value) for name, value in self.fields if name not in own],
            back_to=self.field("back"),
            leave=self.back(default),
        )

    def _theme(self) -> str:
        theme = self.request.cookies.get(THEME)
        return theme if theme in ("light", "dark") else "auto"

    def set_cookie(self, response: Response) -> None:
        """Send the cookie that the tokens of forms belong to."""
        if self._new_cookie:
            forwarded = self.request.headers.get("x-forwarded-proto", self.request.url.scheme)
            response.set_cookie(
                COOKIE,
                self._cookie,
                path=self.base or "/",
                httponly=True,
                samesite="lax",
                secure=forwarded == "https",
            )


def base_of(request: Request) -> str:
    """The path under which a browser sees the dashboard, without a slash at its end.

    Only plain path segments are taken from the proxy's header, so that no link can leave the site.
    """
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    if not _PREFIX.fullmatch(prefix) or ".." in prefix or len(prefix) > 200:
        prefix = ""
    root = str(request.scope.get("root_path", "")).rstrip("/")
    return root if prefix and f"{root}/".startswith(f"{prefix}/") else prefix + root


def path_of(request: Request) -> str:
    """The path of a request below the dashboard, whatever a browser sees before it.

    A server may or may not repeat the path of a mount in that of the request.
    """
    path = str(request.scope["path"])
    root = str(request.scope.get("root_path", "")).rstrip("/")
    return path[len(root) :].lstrip("/") if path.startswith(f"{root}/") else path.lstrip("/")


async def read_form(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, which is bounded."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "send a form")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_BYTES:
            raise Refused(413, f"the form has more than {_FORM_BYTES:,} bytes: select fewer rows")
    try:
        text = body.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_FORM_FIELDS)
    except ValueError as error:
        raise Refused(400, f"the form cannot be read: {error}") from None


def check_origin(request: Request) -> None:
    """Refuse a form that another site has sent."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Refused(403, "this form was sent by another site")
        return
    origin = request.headers.get("origin")
    if origin is not None:
        host = request.headers.get("x-forwarded-host") or request.headers.get("host", "")
        if urlsplit(origin).netloc != host.partition(",")[0].strip():
            raise Refused(403, "this form was sent by another site")


def uuid_of(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Refused(404, f"{text[:60]!r} is not an id") from None


# Filters of the templates


def _count(value: int | None, most: int = MOST) -> str:
    if value is None:
        return "–"
    return f"{most:,}+" if value > most else f"{value:,}"


def shown_span(seconds: float | None) -> str:
    """A length of time in one or two units."""
    if seconds is None:
        return "–"
    seconds = abs(seconds)
    if seconds == math.inf:  # the last place of the histograms of metrics
        return "> 1 h"
    if seconds < 0.0005:
        return "< 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit, below_size, below in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = int(seconds % size // below_size)
            few = seconds < 10 * size and rest
            return f"{int(seconds // size)} {unit}" + (f" {rest} {below}" if few else "")
    return f"{seconds:.0f} s"


def _size(count: int | None) -> str:
    """A number of bytes."""
    if count is None:
        return "–"
    mib = count / 2**20
    return f"{mib:,.0f} MiB" if mib < 1_000 else f"{mib / 1_024:,.1f} GiB"


def _ago(at: datetime, now: datetime) -> str:
    seconds = (now - at).total_seconds()
    return f"{shown_span(seconds)} ago" if seconds >= 0 else f"in {shown_span(seconds)}"


def _utc(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _short(id: object) -> str:
    """The end of an id, which differs where the beginnings are the same time."""
    return f"…{str(id)[-12:]}"


def _breakable(name: str) -> Markup:
    """A long name, which a browser may break behind its underscores and dots."""
    text = escape(_shown(name))
    if len(name) <= 20:
        return text
    return Markup(re.sub(r"([_.]+)", r"\1<wbr>", str(text)))


def _shown(value: Any) -> Any:
    """Every string of a page: control characters and marks that change the direction of text are
    shown as escapes. Markup is left alone."""
    return storable(value, 200_000) if type(value) is str else value


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("chancy.plugins.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        auto_reload=False,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "count": _count,
        "span": shown_span,
        "size": _size,
        "ago": _ago,
        "utc": _utc,
        "short": _short,
        "breakable": _breakable,
    }
    found.filters.update(filters)
    found.globals.update(Action=Action)
    return found


TEMPLATES = _environment()
