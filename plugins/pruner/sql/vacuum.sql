-- Vacuums the table of live jobs; without the privilege this does nothing, and the server warns.
-- Locks: the table, share update exclusive, which reads and writes do not wait for; none if another
-- session has a lock that does not go with it. Safe to repeat.
vacuum (skip_locked) {schema}.jobs
