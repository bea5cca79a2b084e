"""Connection strings: parses a DSN and converts it to the form that each driver takes.

Both forms of libpq are accepted: a URI (``postgresql://user@host/db?sslmode=require``) and
``key=value`` pairs. No message of this module repeats a part of the string that may belong to a
password.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chancy.errors import ConfigurationError

#: Seconds to wait for one host to accept a new connection.
CONNECT_TIMEOUT_S = 5

# A socket whose peer has vanished is closed after 10 + 3 * 5 s without traffic, and 15 s after
# data that was not acknowledged. The kernel's defaults are two hours and 15 minutes.
KEEPALIVES_IDLE_S = 10
KEEPALIVES_INTERVAL_S = 5
KEEPALIVES_COUNT = 3
TCP_USER_TIMEOUT_MS = 15_000

_ENCODE_HINT = (
    'in a URI a password that contains one of "@:/?#% " must be percent-encoded '
    "(urllib.parse.quote(password, safe=''))"
)

_UNKNOWN_PARAMETER = "it has a parameter that libpq does not support"
_NO_VALUE = 'a parameter has no "="'

# Prefixes of libpq's error messages, and our explanations.
_REASONS = (
    ("invalid connection option", _UNKNOWN_PARAMETER),
    ("invalid URI query parameter", _UNKNOWN_PARAMETER),
    ('missing "="', _NO_VALUE),
    ("missing key/value separator", _NO_VALUE),
    ("extra key/value separator", 'a parameter has more than one "="'),
    ("invalid percent-encoded token", 'a "%" is not followed by two hexadecimal digits'),
    ("forbidden value", "it contains a zero byte"),
    ("unterminated quoted string", "a quote is not closed"),
    ("end of string reached", 'the "[" of an IPv6 address is not closed'),
    ("unexpected character", 'a ":" or "/" is missing after an IPv6 address'),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DsnHost:
    """One server of a DSN: a host name, an address, or the directory of a Unix socket."""

    name: str
    port: int | None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dsn:
    """A parsed DSN. The parameters have libpq's names and may contain a password."""

    parameters: Mapping[str, str] = field(repr=False)
    hosts: tuple[DsnHost, ...]
    connect_timeout_s: float | None

    @property
    def place(self) -> str:
        """The database for error messages: its name and hosts, without secrets."""
        database = self.parameters.get("dbname") or self.parameters.get("user")
        hosts = ",".join(map(str, self.hosts)) or self.parameters.get("service") or "local"
        return f'database "{database}" at {hosts}' if database else f"the database at {hosts}"

    def only(self, host: DsnHost) -> Dsn:
        """The DSN with one of its hosts."""
        parameters = {name: value for name, value in self.parameters.items() if name != "hostaddr"}
        parameters |= {"host": host.name, "port": "" if host.port is None else str(host.port)}
        return replace(self, parameters=parameters, hosts=(host,))

    def conninfo(self, *, application_name: str) -> str:
        """The ``key=value`` form for libpq, with timeouts and keepalives filled in.

        An application name, a timeout or a keepalive that the DSN sets is kept.
        """
        from psycopg.conninfo import make_conninfo

        merged: dict[str, str | int] = {
            "application_name": application_name,
            "keepalives_idle": KEEPALIVES_IDLE_S,
            "keepalives_interval": KEEPALIVES_INTERVAL_S,
            "keepalives_count": KEEPALIVES_COUNT,
            "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
            **self.parameters,
            "connect_timeout": int(self.connect_timeout_s or 0),
            "client_encoding": "UTF8",
        }
        return make_conninfo("", **merged)


def parse(dsn: str) -> Dsn:
    """Parse a URI or a ``key=value`` string.

    With several hosts and no ``target_session_attrs``, only a host that accepts writes is used.

    :raises ConfigurationError: the DSN is invalid; the message contains no secrets.
    """
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    dsn = dsn.lstrip().rstrip("\r\n")  # a secret that was read from a file ends with its line
    if "\0" in dsn:  # libpq would ignore everything after it
        raise ConfigurationError("the DSN cannot be parsed: it contains a zero byte")
    _check_scheme(dsn)
    try:
        parameters = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    except (Error, UnicodeError) as error:
        # The driver's message repeats parts of the DSN, so it is not chained either.
        raise ConfigurationError(_explain(str(error))) from None
    hosts = _hosts(parameters)
    if len(hosts) > 1 and not os.environ.get("PGTARGETSESSIONATTRS"):
        parameters.setdefault("target_session_attrs", "read-write")
    timeout_s = _connect_timeout(parameters)
    return Dsn(parameters=parameters, hosts=hosts, connect_timeout_s=timeout_s)


def redacted(dsn: str) -> str:
    """The user, hosts and database of a DSN, for logs. Never raises."""
    try:
        parsed = parse(dsn)
    except ConfigurationError:
        return "postgresql://(invalid DSN)"
    user = parsed.parameters.get("user", "")
    hosts = ",".join(map(str, parsed.hosts))
    return f"postgresql://{user and user + '@'}{hosts}/{parsed.parameters.get('dbname', '')}"


def _check_scheme(dsn: str) -> None:
    scheme = re.match(r"\s*([A-Za-z][\w+.-]*)://", dsn)
    if scheme is not None and scheme[1] not in ("postgresql", "postgres"):
        raise ConfigurationError(
            f'the DSN begins with "{scheme[1]}://": write "postgresql://" '
            "(the driver is a separate setting)"
        )


def _explain(message: str) -> str:
    """Why libpq rejected a DSN, without its own message: that may quote part of a password."""
    reason = next((text for start, text in _REASONS if message.startswith(start)), None)
    if reason is not None and reason is not _UNKNOWN_PARAMETER:
        return f"the DSN cannot be parsed: {reason}; {_ENCODE_HINT}"
    if reason is None:
        return f"the DSN cannot be parsed: it is neither a URI nor key=value pairs; {_ENCODE_HINT}"
    from psycopg.pq import Conninfo

    quoted = message.partition('"')[2].rpartition('"')[0]
    known = [option.keyword.decode() for option in Conninfo.get_defaults()]
    near = difflib.get_close_matches(quoted, known, n=1, cutoff=0.75)
    hint = f'did you mean "{near[0]}"?' if near else _ENCODE_HINT
    return f"the DSN cannot be parsed: {reason}; {hint}"


def _hosts(parameters: Mapping[str, str]) -> tuple[DsnHost, ...]:
    names = _listed(parameters, "host", "PGHOST") or _listed(parameters, "hostaddr", "PGHOSTADDR")
    ports = [_port(port) for port in _listed(parameters, "port", "PGPORT")]
    if any("@" in name[1:] and name[0] != "/" for name in names):
        raise ConfigurationError(f"a host of the DSN contains an @; {_ENCODE_HINT}")
    if len(ports) > 1 and len(ports) != len(names):
        raise ConfigurationError(
            f"the DSN has {len(ports)} ports for {len(names)} hosts: pass one port, or one per host"
        )
    default = ports[0] if len(ports) == 1 else None
    paired = ports if len(ports) == len(names) else [default] * len(names)
    return tuple(DsnHost(name=name, port=port) for name, port in zip(names, paired, strict=True))


def _listed(parameters: Mapping[str, str], name: str, variable: str) -> list[str]:
    value = parameters.get(name) or os.environ.get(variable) or ""
    return value.split(",") if value else []


def _port(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ConfigurationError(
            f"a port of the DSN is not a number from 1 to 65535; {_ENCODE_HINT}"
        )
    return int(text)


def _connect_timeout(parameters: Mapping[str, str]) -> float | None:
    """Seconds to wait for each host; None: no limit, which libpq writes as zero or less."""
    text = parameters.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
    if not text:
        return CONNECT_TIMEOUT_S
    try:
        seconds = int(text)
    except ValueError:
        raise ConfigurationError("connect_timeout of the DSN is not a number") from None
    return max(2.0, seconds) if seconds > 0 else None
