"""Access to the dashboard: people, roles, actions, and the checks of a request."""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from chancy.checks import check_instance
from chancy.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class Role(IntEnum):
    """The role of a person; each role includes the ones before it."""

    #: See everything except masked values.
    VIEWER = 1
    #: Also act on jobs, queues, cron entries, dead letters, workflows and workers.
    OPERATOR = 2
    #: Also change settings of queues, and delete.
    ADMIN = 3


class Action(StrEnum):
    """What a person may be allowed to do. The subject is in parentheses."""

    #: See pages ().
    VIEW = "view"
    #: See arguments, results, meta and logs of jobs, and find jobs by them (func:PATH; the path is
    #: empty for signals of workflows).
    VIEW_ARGUMENTS = "view arguments"
    #: See the audit ().
    VIEW_AUDIT = "view audit"
    #: Cancel jobs (queue:NAME).
    CANCEL_JOB = "cancel job"
    #: Run scheduled jobs now (queue:NAME).
    RUN_JOB = "run job now"
    #: Release jobs on hold (queue:NAME).
    RELEASE_JOB = "release job"
    #: Change the priority and the time of waiting jobs (queue:NAME).
    CHANGE_JOB = "change job"
    #: Replay dead letters (queue:NAME).
    REPLAY_LETTER = "replay dead letter"
    #: Purge dead letters (queue:NAME).
    PURGE_LETTER = "purge dead letter"
    #: Pause and resume a queue (queue:NAME).
    PAUSE_QUEUE = "pause queue"
    #: Change the concurrency of a queue (queue:NAME).
    CHANGE_QUEUE = "change queue"
    #: Pause and resume a cron entry (cron:NAME).
    PAUSE_CRON = "pause cron entry"
    #: Push the job of a cron entry now (cron:NAME).
    RUN_CRON = "run cron entry"
    #: Cancel and retry a workflow (workflow:ID).
    STEER_WORKFLOW = "steer workflow"
    #: Cancel a batch (batch:ID).
    STEER_BATCH = "steer batch"
    #: Skip failed jobs that block a sequence (queue:NAME).
    SKIP_BLOCK = "skip block"
    #: Ask a worker to shut down (worker:ID).
    STOP_WORKER = "stop worker"


#: The lowest role for each action.
ROLES: Mapping[Action, Role] = {
    Action.VIEW: Role.VIEWER,
    Action.VIEW_ARGUMENTS: Role.VIEWER,
    Action.VIEW_AUDIT: Role.OPERATOR,
    Action.CANCEL_JOB: Role.OPERATOR,
    Action.RUN_JOB: Role.OPERATOR,
    Action.RELEASE_JOB: Role.OPERATOR,
    Action.CHANGE_JOB: Role.OPERATOR,
    Action.REPLAY_LETTER: Role.OPERATOR,
    Action.PURGE_LETTER: Role.ADMIN,
    Action.PAUSE_QUEUE: Role.OPERATOR,
    Action.CHANGE_QUEUE: Role.ADMIN,
    Action.PAUSE_CRON: Role.OPERATOR,
    Action.RUN_CRON: Role.OPERATOR,
    Action.STEER_WORKFLOW: Role.OPERATOR,
    Action.STEER_BATCH: Role.OPERATOR,
    Action.SKIP_BLOCK: Role.OPERATOR,
    Action.STOP_WORKER: Role.OPERATOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The person who sends a request.

    :param name: 1 to 200 characters, as written into the audit.
    :param role: the role that `by_role` checks.
    """

    name: str
    role: Role = Role.VIEWER

    def __post_init__(self) -> None:
        check_instance(self.name, str, "name", "pass a string")
        check_instance(self.role, Role, "role", "pass Role.VIEWER, Role.OPERATOR or Role.ADMIN")
        if not 1 <= len(self.name) <= 200:
            raise ConfigurationError("the name of a person must have 1 to 200 characters")


#: Returns the person of a request, a response such as a redirect to a login, or None to refuse it.
Auth = Callable[["Request"], "Person | Response | Awaitable[Person | Response | None] | None"]
#: Whether a person may do something to a subject, such as ``queue:mail``.
Can = Callable[[Person, Action, str], bool]


def by_role(person: Person, action: Action, subject: str) -> bool:
    """The default of ``can``: checks only the role of the person."""
    return person.role >= ROLES[action]


class BasicAuth:
    """Asks for a name and a password with HTTP basic authentication. Use it only over TLS.

    :param people: passwords and roles by name.
    """

    def __init__(self, people: Mapping[str, tuple[str, Role]]) -> None:
        for name, (password, _) in people.items():
            if len(password) < 8:
                raise ConfigurationError(
                    f"the password of {name!r} must have at least 8 characters"
                )
        self._people = {
            name: (password.encode(), Person(name=name, role=role))
            for name, (password, role) in people.items()
        }

    def __call__(self, request: Request) -> Person | Response | None:
        from starlette.responses import PlainTextResponse

        kind, _, credentials = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                name, _, password = base64.b64decode(credentials).decode().partition(":")
            except ValueError:  # no base64, no ASCII, or no UTF-8
                name, password = "", ""
            expected, person = self._people.get(name, (b"", None))
            # Also compared for unknown names, so that the time does not reveal which names exist.
            if hmac.compare_digest(password.encode(), expected) and person is not None:
                return person
        return PlainTextResponse(
            "a name and a password are required",
            401,
            {"WWW-Authenticate": 'Basic realm="chancy", charset="UTF-8"'},
        )


#: Headers that a proxy adds, and a browser does not send.
_PROXIES = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-forwarded-user",
    "x-real-ip",
)
#: The person who uses a dashboard without ``auth``, only on this machine.
LOCAL = Person(name="local", role=Role.ADMIN)


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, means this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(request: Request) -> str | None:
    """Why a request must not be served without ``auth``; None if it comes from this machine."""
    proxied = next((name for name in _PROXIES if name in request.headers), None)
    if proxied is not None:
        return f"it came through a proxy, which sent {proxied}"
    client = request.client.host if request.client else "an unknown address"
    if not is_loopback(client):
        return f"it came from {client}"
    # A page of another site whose name was made to resolve to this machine sends its own name.
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if not is_loopback(name):
        return f"it was sent to {name or 'no host'}, and not to localhost"
    return None
