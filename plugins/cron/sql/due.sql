-- Entries with a tick to fire or a next tick that is not computed yet, at most $1 after the first $3;
-- each row has the server's time, the bytes of its job as stored, and the seconds until the next other
-- entry. One row of nulls if there is none.
-- Lapsed entries are left out, except those named in $2: the caller has them in its code, and they
-- lapsed because the clock of the server was set or no worker could declare them for a while.
-- For an entry whose ticks must not overlap and whose queue is in another broker, the last jobs
-- too: their state is not known here.
-- Index: cron_entries_next, the primary key of queues. No locks. Safe to repeat.
with active as not materialized (
  select *
  from {schema}.cron_entries
  where paused_at is null
    and (lapses_at is null or lapses_at > statement_timestamp() or name = any($2::text[])))
select
  e.name,
  e.revision,
  e.expression,
  e.zone,
  e.misfire,
  e.overlap,
  e.grace_s,
  e.backfill_limit,
  e.jitter_s,
  {schema}.utc(greatest(e.from_at, e.last_tick)),
  {schema}.utc(statement_timestamp()),
  coalesce(pg_column_size(e.arguments), 0) + coalesce(pg_column_size(e.meta), 0),
  case
    when e.overlap = 'skip'
      and exists (
        select
        from {schema}.queues as q
        where q.name = e.queue
          and q.broker <> 'postgres')
    then e.jobs
  end,
  w.wait_s
from (
  select extract(epoch from least(min(next_at), statement_timestamp() + interval '1 day')
    - statement_timestamp())::float8 as wait_s
  from active
  where next_at > statement_timestamp()) as w
left join lateral (
  select *
  from active
  where next_at <= statement_timestamp()
  order by next_at, name
  limit $1::int
  offset $3::int) as e on true
