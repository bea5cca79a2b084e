-- The rows and dead rows of the table of unfinished jobs, by the statistics of the server, and the
-- seconds since it was last vacuumed. No locks. Safe to repeat.
select
  s.n_live_tup,
  s.n_dead_tup,
  extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8
from pg_catalog.pg_stat_all_tables as s
where s.schemaname = {schema_text}
  and s.relname = 'jobs'
