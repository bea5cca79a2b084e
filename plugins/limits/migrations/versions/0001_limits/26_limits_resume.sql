-- Ends the pauses of rate limits of a queue that jobs have asked for: those of the value p_value of a
-- rule, '' for the queue as a whole; null: all. Adds no tokens. Returns the values, and notifies workers.
-- Index: the primary keys. Locks: the row of limits_queues, and under it, as claims do, rows of
-- limits_buckets and limits_partitions. Safe to repeat.
create function {schema}.limits_resume(p_queue text, p_value text) returns setof text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  s {schema}.limits_queues;
begin
  select * into s from {schema}.limits_queues q where q.queue = p_queue for update;
  return query
  with paused as materialized (
    select b.rule, b.grp from {schema}.limits_buckets b
    where b.queue = p_queue and b.paused_until > clock_timestamp()
      and (p_value is null or b.grp = p_value)
    order by b.rule, b.grp for update
  ), resumed as (
    update {schema}.limits_buckets b
    set paused_until = null
    from paused d
    where b.queue = p_queue and b.rule = d.rule and b.grp = d.grp
  ), ready as (
    update {schema}.limits_partitions p
    set ready_at = clock_timestamp()
    where p.queue = p_queue and p.ready_at > clock_timestamp() and exists (
      select from unnest(s.by_nos) with ordinality as r (by_no, no)
      where (r.no, {schema}.limits_group(coalesce(p.head, p.key), r.by_no, cardinality(s.bys)))
        in (select d.rule, d.grp from paused d))
  )
  select distinct d.grp from paused d;
  perform {schema}.wake(p_queue, false);
end
$$
