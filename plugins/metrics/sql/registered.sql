-- A row if the worker $1 is registered: the seconds since its last heartbeat, and whether they exceed
-- its timeout. Index: the primary key of workers. No locks. Safe to repeat.
select age_s, age_s > heartbeat_timeout_s
from {schema}.workers
cross join lateral (
  select (extract(epoch from clock_timestamp()) - extract(epoch from beat_at))::float8 as age_s
) as age
where id = $1::uuid
