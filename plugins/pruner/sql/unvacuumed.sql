-- Whether the server does not know of a vacuum of the table of live jobs, and of rows that have been
-- written to it: after a failover or a crash, as the statistics are lost. No locks but those of the
-- catalog. Safe to repeat.
select s.last_vacuum is null and s.last_autovacuum is null and s.n_tup_ins > 0
from pg_stat_all_tables as s
where s.schemaname = {schema_text} and s.relname = 'jobs'
