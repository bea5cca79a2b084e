-- Whether a commit of this role in this database has waited for a synchronous standby for more than
-- $1 seconds. Index: none; reads the sessions of the server. No locks. Safe to repeat.
select exists (
  select from pg_catalog.pg_stat_activity
  where datname = current_database()
    and usename = current_user
    and wait_event = 'SyncRep'
    and query_start < clock_timestamp() - $1::float8 * interval '1 second')
