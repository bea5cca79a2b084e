"""Plain URIs of Postgres, read without libpq: importing psycopg takes longer than most commands."""

from __future__ import annotations

import re

# What libpq would take apart in no other way: nothing in it is escaped, listed or repeated.
_PLAIN = r"[A-Za-z0-9_.-]+"
_URI = re.compile(
    rf"(?:postgresql|postgres)://(?:(?P<user>{_PLAIN})(?::(?P<password>{_PLAIN}))?@)?"
    rf"(?P<host>{_PLAIN})?(?::(?P<port>[0-9]+))?(?:/(?P<dbname>{_PLAIN})?)?(?:\?(?P<query>.+))?"
)
_PAIR = re.compile(r"(host|port|user|password|dbname|application_name)=([A-Za-z0-9_./-]+)")


def read_plain(uri: str) -> dict[str, str] | None:
    """The parameters of a URI, as libpq reads it; None for one that is not as plain as that."""
    match = _URI.fullmatch(uri)
    if match is None:
        return None
    found = {name: value for name, value in match.groupdict().items() if value is not None}
    query = found.pop("query", None)
    seen = set[str]()
    for pair in [] if query is None else query.split("&"):
        named = _PAIR.fullmatch(pair)
        if named is None or named[1] in seen:
            return None
        seen.add(named[1])
        found[named[1]] = named[2]
    return found
