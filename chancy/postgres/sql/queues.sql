-- All queues, or one by name. Scans a small table. No locks. Safe to repeat.
select
  name,
  executor,
  concurrency,
  tags,
  poll_interval_s,
  keep_finished,
  paused_at is not null and (resume_at is null or resume_at > clock_timestamp()),
  {schema}.utc(resume_at),
  limits::text,
  options::text,
  broker,
  broker_options::text,
  rules::text
from {schema}.queues
where $1::text is null
  or name = $1
order by name
