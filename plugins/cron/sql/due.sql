-- Entries that have a tick to fire or whose next tick is not worked out, at most $1, and in each
-- row the server's time and the seconds until the next one of the others. One row of nulls if
-- nothing is due. Not those that have lapsed, but for those of the names $2: who asks has them in
-- its code, and the clock of the server has been set, or nobody could say so for a while.
-- Of an entry whose ticks must not overlap, and whose queue another broker has, the last jobs too:
-- nobody can say here whether they have ended.
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
  limit $1::int) as e on true
