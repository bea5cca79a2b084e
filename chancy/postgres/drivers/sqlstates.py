"""What the five characters of a server's error mean for the session it came on."""

from __future__ import annotations

# The administrator, a crash or the idle timeout ended the session (57P01, 57P02, 57P05), or
# the server does not take sessions yet (57P03); the transaction of an idle or long session
# was ended together with it (25P03, 25P04). 25006: the server went read-only under us, so it
# is no longer the primary, and only a new connection can find the one that is.
_LOST = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006"})

# Plans that a migration made stale, and names that the server has forgotten or has twice.
STALE_STATEMENT = frozenset({"0A000", "26000", "42P05"})

# The connection itself was refused for a reason that a later try will meet again: a wrong
# password or role (class 28), a database that does not exist (3D000).
_REFUSED_CLASS = "28"
_REFUSED = frozenset({"3D000"})

#: What stands for an error that was found before the server saw the statement: the values
#: do not fit it. ("Data exception", the class that the server would have answered with.)
DATA_EXCEPTION = "22000"

#: A row with one of the ids is there.
UNIQUE_VIOLATION = "23505"

# A schema, a relation or a function is not there.
_MISSING = frozenset({"3F000", "42P01", "42883"})
_MISSING_COLUMN = "42703"

#: A transaction in which a statement failed can only be rolled back.
FAILED_TRANSACTION = "25P02"

#: The function of the server whose warning says that a commit gave up waiting for its
#: synchronous standby: the commit stands here, and the standby may not have it. The warning
#: has no SQLSTATE of its own, and its text is in the server's language.
UNCONFIRMED_COMMIT = "SyncRepWaitForLSN"


def one_line(said: object) -> str:
    """What a driver says, some of it over several lines."""
    return " ".join(str(said).split())


def advised(sqlstate: str, text: str) -> str:
    """The server's message in one line, with what to do where tables of chancy may be missing.

    Only names with a schema are meant: a caller's own statements, in a session of ours, name
    their tables without one as a rule.
    """
    text = one_line(text)
    if sqlstate in _MISSING and (sqlstate == "3F000" or "." in text):
        return f"{text}: if it is one of chancy's, run `chancy migrate upgrade`"
    return text


def something_missing(error: BaseException) -> bool:
    """Whether an error of ours, of a driver, of SQLAlchemy or of Django says that the server does
    not have what a statement names."""
    for one in (error, getattr(error, "orig", None), error.__cause__):
        sqlstate = getattr(one, "sqlstate", None)
        if sqlstate == _MISSING_COLUMN or sqlstate in _MISSING:
            return True
    return False


def lost(sqlstate: str) -> bool:
    """Whether the session must not be used again after this error."""
    return sqlstate[:2] == "08" or sqlstate in _LOST


def lost_on_connect(sqlstate: str) -> bool:
    """Whether the server could not take a session for now (53300: it has too many)."""
    return lost(sqlstate) or sqlstate[:2] in ("53", "57", "58")


def refused(sqlstate: str) -> bool:
    """Whether the server will not have this user or database, now or later."""
    return sqlstate[:2] == _REFUSED_CLASS or sqlstate in _REFUSED
