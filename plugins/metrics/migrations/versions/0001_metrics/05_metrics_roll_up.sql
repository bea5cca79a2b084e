-- Adds up to p_limit rows of one step, older than p_older_s seconds, to rows of the next one: reports
-- to minutes, minutes to hours. Several rows may cover the same time: readers add them. Returns the
-- number of rows that were added up.
-- Index: metrics_at. Locks: the rows, skipping locked ones. Safe to repeat.
create function {schema}.metrics_roll_up(p_step int, p_next int, p_older_s float8, p_limit int)
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
    order by m.at limit p_limit for update skip locked
  ), gone as (
    delete from {schema}.metrics m
    where m.ctid = any (array(select old.tid from old))
    returning *
  ), added as (
    insert into {schema}.metrics
    select p_next, date_bin(p_next * interval '1 second', g.at, 'epoch'), g.queue, g.func,
      sum(g.succeeded), sum(g.failed), sum(g.retried), sum(g.crashed), sum(g.cancelled),
      sum(g.snoozed), sum(g.released), sum(g.stale), sum(g.wait_s), sum(g.run_s),
      {schema}.metrics_sum(g.waits), {schema}.metrics_sum(g.runs)
    from gone g
    group by 2, 3, 4)
  select count(*) into v_rows from gone;
  return v_rows;
end
$$
