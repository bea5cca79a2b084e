"""Which sessions wait for a lock that a test holds."""

from __future__ import annotations

#: Of ``pg_stat_activity``: a session of this database waits for a row, a key, a table or an
#: advisory lock. Not the lock "object", under which the commits of all that notify on the whole
#: server take turns: a test beside this one may hold that for a moment.
BLOCKED = "datname = current_database() and wait_event_type = 'Lock' and wait_event <> 'object'"
