-- Transactions of this database that have been open for $1 seconds, the oldest first, each with the
-- session whose lock it waits for. Reads the views of the server. No locks. Safe to repeat.
select
  a.pid::text,
  a.application_name,
  a.state,
  extract(epoch from clock_timestamp() - a.xact_start)::float8,
  extract(epoch from clock_timestamp() - a.query_start)::float8,
  left(a.query, 200),
  case when a.wait_event_type = 'Lock' then (pg_blocking_pids(a.pid))[1] end
from pg_catalog.pg_stat_activity as a
where a.datname = current_database()
  and a.pid <> pg_backend_pid()
  and a.backend_type = 'client backend'
  and a.xact_start < clock_timestamp() - $1::float8 * interval '1 s'
order by a.xact_start
limit 6
