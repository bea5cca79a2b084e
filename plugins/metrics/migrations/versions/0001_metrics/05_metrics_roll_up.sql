-- Adds up to p_limit rows of one step, older than p_older_s seconds, to rows of the next one: reports
-- to minutes, minutes to hours. With p_keep the rows stay, with the step negated: as part of the next
-- one. Several rows may cover the same time: readers add them. Rows of one queue and function are taken
-- together, so that few rows result. Returns the number of rows that were added up.
-- Index: metrics_at. Locks: the rows, skipping locked ones. Safe to repeat.
create function {schema}.metrics_roll_up(
  p_step int, p_next int, p_older_s float8, p_limit int, p_keep boolean
)
returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  v_rows int;
begin
  with old as materialized (
    select m.ctid as tid from {schema}.metrics m
    where m.step = p_step and m.at < date_bin(p_next * interval '1 second',
      clock_timestamp() - p_older_s * interval '1 second', 'epoch')
    order by date_bin(p_next * interval '1 second', m.at, 'epoch'), m.queue, m.func
    limit p_limit for update skip locked
  ), gone as (
    delete from {schema}.metrics m
    where m.ctid = any (array(select old.tid from old))
    returning *
  ), kept as (
    insert into {schema}.metrics
    select -g.step, g.at, g.queue, g.func, g.succeeded, g.failed, g.retried, g.crashed, g.rescued,
      g.cancelled, g.expired, g.snoozed, g.released, g.stale, g.wait_s, g.run_s, g.waits, g.runs, g.ends
    from gone g
    where p_keep
  ), added as (
    insert into {schema}.metrics
    select p_next, date_bin(p_next * interval '1 second', g.at, 'epoch'), g.queue, g.func,
      sum(g.succeeded), sum(g.failed), sum(g.retried), sum(g.crashed), sum(g.rescued),
      sum(g.cancelled), sum(g.expired), sum(g.snoozed), sum(g.released), sum(g.stale),
      sum(g.wait_s), sum(g.run_s), {schema}.metrics_sum(g.waits), {schema}.metrics_sum(g.runs),
      {schema}.metrics_sum(g.ends)
    from gone g
    group by 2, 3, 4)
  select count(*) into v_rows from gone;
  return v_rows;
end
$$
