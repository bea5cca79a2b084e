-- The partitions that drop_days($1) would drop. No locks but those of the catalog. Safe to repeat.
select c.relname::text
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = '{schema}.finished_jobs'::regclass
  and c.relname ~ '^finished_jobs_([0-9]{8}|[0-9]{10})$'
  and c.relname < 'finished_jobs_' || to_char(
    (clock_timestamp() at time zone 'UTC')::date - $1::int, 'YYYYMMDD')
order by c.relname
