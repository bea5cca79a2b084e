-- All workers. Scans a small table. No locks. Safe to repeat.
select
  id,
  host,
  pid,
  tags,
  queues,
  version,
  {schema}.utc(started_at),
  {schema}.utc(beat_at),
  extract(epoch from clock_timestamp() - beat_at)::float8,
  broken::text,
  blocked_s,
  unknown
from {schema}.workers
order by started_at
