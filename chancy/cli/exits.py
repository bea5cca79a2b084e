"""What commands exit with, and how they say why."""

from __future__ import annotations

from chancy.errors import BrokerUnavailable, ChancyError, SchemaMismatch, WaitTimeout
from chancy.plugin.commands import NO as NO
from chancy.plugin.commands import complain as complain

#: Usage or configuration.
USAGE = 2
#: The tables are missing, or of another version.
TABLES = 3
#: The database cannot be reached.
AWAY = 4


def code_of(error: BaseException) -> int | None:
    """The exit code of an error; None if it is a fault in the program."""
    match error:
        case SchemaMismatch():
            return TABLES
        case BrokerUnavailable():
            return AWAY
        case WaitTimeout():
            return NO
        case ChancyError():
            return USAGE
        case _:
            return None
