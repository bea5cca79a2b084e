-- The name of today's partition if there is none. No locks but those of the catalog. Safe to repeat.
select name
from concat('finished_jobs_', to_char(clock_timestamp() at time zone 'UTC', 'YYYYMMDD')) as name
where to_regclass(format('%I.%I', {schema_text}, name)) is null
