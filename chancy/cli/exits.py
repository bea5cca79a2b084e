"""The exit codes of the commands."""

from __future__ import annotations

from chancy.errors import BrokerError, BrokerUnavailable, ChancyError, JobError, SchemaMismatch
from chancy.plugin.commands import NO as NO
from chancy.plugin.commands import complain as complain

#: A usage or configuration error.
USAGE = 2
#: The tables are missing or at another version.
TABLES = 3
#: The database, or another broker, cannot be reached, or refuses for now: its disk may be full.
AWAY = 4
#: The reader of the output closed its pipe: 128 + SIGPIPE, which Python ignores.
PIPE = 141


def code_of(error: BaseException) -> int | None:
    """The exit code for an error; None if the error is not one of chancy's."""
    match error:
        case SchemaMismatch():
            return TABLES
        case BrokerUnavailable():
            return AWAY
        case BrokerError() if error.retryable:
            return AWAY
        case JobError():
            return NO
        case ChancyError():
            return USAGE
        case _:
            return None
