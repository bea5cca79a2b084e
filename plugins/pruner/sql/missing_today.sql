-- The name of today's partition if there is none, nor one of this hour. No locks but those of the
-- catalog. Safe to repeat.
select t.day
from to_char(clock_timestamp() at time zone 'UTC', 'YYYYMMDDHH24') as h (hour)
cross join concat('finished_jobs_', left(h.hour, 8)) as t (day)
where to_regclass(format('%I.%I', {schema_text}, t.day)) is null
  and to_regclass(format('%I.%I', {schema_text}, 'finished_jobs_' || h.hour)) is null
