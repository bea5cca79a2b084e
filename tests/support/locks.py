"""A condition for the sessions that wait for a lock held by a test."""

from __future__ import annotations

#: A condition on ``pg_stat_activity``: a session of this database waits for a row, a key, a table
#: or an advisory lock. Excludes the lock "object", which serializes the commits of all transactions
#: with notifications on the server: another test may hold it briefly.
BLOCKED = "datname = current_database() and wait_event_type = 'Lock' and wait_event <> 'object'"
