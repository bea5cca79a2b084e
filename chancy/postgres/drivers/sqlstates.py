"""Classifies SQLSTATEs: what an error means for the session and the statement."""

from __future__ import annotations

#: The transaction may only read: by a setting, or because the server does not accept writes.
READ_ONLY = "25006"

# The administrator, a crash or the idle timeout ended the session (57P01, 57P02, 57P05), or
# the server does not accept sessions yet (57P03); an idle or long transaction was ended together
# with its session (25P03, 25P04). 25006: the server became read-only, so it is no longer the
# primary, and only a new connection can find the new one.
_LOST = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", READ_ONLY})

# A plan that a migration made stale, or a prepared statement that is missing or exists already.
STALE_STATEMENT = frozenset({"0A000", "26000", "42P05"})

# The connection was refused for a permanent reason: a wrong password or role (class 28), or a
# database that does not exist (3D000).
_REFUSED_CLASS = "28"
_REFUSED = frozenset({"3D000"})

#: The server has no room for another session of this client.
TOO_MANY_CONNECTIONS = "53300"

#: "Data exception": used for parameters that a driver rejects before it sends the statement. The
#: server would have returned this class.
DATA_EXCEPTION = "22000"

#: "Character not in repertoire": the server's code for text that it cannot store.
_UNSTORABLE = "22021"

#: A timeout of the server or a cancel request has ended the statement.
QUERY_CANCELED = "57014"

#: The function ``check_counted`` refuses a push.
NOT_COUNTED = "CH002"

#: A row with one of the ids exists.
UNIQUE_VIOLATION = "23505"

# A row violates a check, or the bounds of its partition.
_CHECK_VIOLATION = "23514"

# A schema, a relation or a function does not exist.
_MISSING = frozenset({"3F000", "42P01", "42883"})
#: A function that the role may not call, or that the server does not have.
NEVER_ALLOWED = frozenset({"0A000", "42501", "42883", "42P01"})
_MISSING_COLUMN = "42703"

# While the server's queue of notifications is full, it refuses commits that notify. Its SQLSTATE
# stands for limits that persist, so the function of the server's source identifies the error.
_NOTIFY_QUEUE_FULL = ("54000", "PreCommit_Notify")

#: A statement of the transaction has failed, so that it can only be rolled back.
FAILED_TRANSACTION = "25P02"

#: The function of the server that warns when a commit stopped waiting for its synchronous standby:
#: the commit is durable here, but the standby may not have it. The warning has no SQLSTATE of its
#: own, and its text is in the server's language.
UNCONFIRMED_COMMIT = "SyncRepWaitForLSN"


def unencodable(error: UnicodeEncodeError) -> tuple[str, str]:
    """The SQLSTATE and the message for text with characters that UTF-8 does not have."""
    found = error.object[error.start : error.end]
    return _UNSTORABLE, f'invalid characters for encoding "UTF8": {found!a}'


def one_line(message: object) -> str:
    """A message of a driver, which may have several lines, as one line."""
    return " ".join(str(message).split())


def advised(sqlstate: str, text: str) -> str:
    """The server's message in one line, with a hint if tables of chancy may be missing.

    The hint is only added for names with a schema: the statements of callers on our sessions
    usually name their tables without one.
    """
    text = one_line(text)
    if sqlstate in _MISSING and (sqlstate == "3F000" or "." in text):
        return (
            f"{text}: if it is one of chancy's, run `chancy migrate upgrade`, with --app if it "
            "belongs to a plugin that is not a default one"
        )
    return text


def something_missing(error: BaseException) -> bool:
    """Whether a statement failed because a schema, table, function or column does not exist.

    :param error: raised by chancy, a driver, SQLAlchemy or Django.
    """
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        sqlstate = getattr(candidate, "sqlstate", None)
        if sqlstate == _MISSING_COLUMN or sqlstate in _MISSING:
            return True
    return False


def passing(sqlstate: str, error: Exception) -> bool:
    """Whether the same statement may succeed later, although its SQLSTATE does not show it.

    :param error: raised by a driver.
    """
    details = getattr(error, "diag", error)
    function = getattr(details, "source_function", None)
    function = function or getattr(details, "server_source_function", None)
    return (sqlstate, function) == _NOTIFY_QUEUE_FULL or _partition_changed(sqlstate, details)


def _partition_changed(sqlstate: str, details: object) -> bool:
    """Whether a row was refused by the bounds of its partition, and not by a check of a table.

    While a partition is attached, rows for it may have been sent to the default one. The same
    statement then succeeds. Only a check has a name.
    """
    return (
        sqlstate == _CHECK_VIOLATION
        and getattr(details, "table_name", None) is not None
        and getattr(details, "constraint_name", None) is None
    )


def lost(sqlstate: str) -> bool:
    """Whether the session must not be used again after this error."""
    return sqlstate[:2] == "08" or sqlstate in _LOST


def lost_on_connect(sqlstate: str) -> bool:
    """Whether the server cannot accept a session right now (53300: it has too many)."""
    return lost(sqlstate) or sqlstate[:2] in ("53", "57", "58")


def serves_others(sqlstate: str | None) -> bool:
    """Whether a server that refused a connection goes on with the sessions that it has."""
    return sqlstate is not None and (refused(sqlstate) or sqlstate == TOO_MANY_CONNECTIONS)


def statement_refused(sqlstate: str | None) -> bool:
    """Whether a running server refused a statement, and may accept those of others."""
    return sqlstate is not None and (sqlstate == READ_ONLY or not lost(sqlstate))


def refused(sqlstate: str) -> bool:
    """Whether the server refuses this user or database permanently."""
    return sqlstate[:2] == _REFUSED_CLASS or sqlstate in _REFUSED
