-- Workers without a heartbeat for $1 seconds; all of them with 0. Scans the table: an index on beat_at
-- would be written by every heartbeat, and a call that finds none of 1,000 takes 0.6 ms. No locks. Safe to
-- repeat.
select
  id,
  host,
  pid,
  tags,
  queues,
  version,
  {schema}.utc(started_at),
  {schema}.utc(beat_at),
  -- Not of the difference: that of an infinite time is an error, or no number of JSON.
  least(greatest(extract(epoch from clock_timestamp()) - extract(epoch from beat_at), 0), 1e9)::float8,
  broken::text,
  blocked_s,
  unknown,
  ahead_s,
  heartbeat_timeout_s,
  memory_bytes,
  {schema}.utc(stop_asked_at)
from {schema}.workers
where $1::float8 = 0 or beat_at < clock_timestamp() - $1::float8 * interval '1 s'
order by started_at
