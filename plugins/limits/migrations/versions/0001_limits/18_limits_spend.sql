-- Takes the tokens of jobs that start, given by their partitions. Index: the primary key of
-- limits_buckets. Locks: none but those of the caller.
create function {schema}.limits_spend(
  s {schema}.limits_queues, p_keys text[], p_now timestamptz
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
  insert into {schema}.limits_buckets as b (queue, rule, grp, tokens, at)
  select s.queue, r.no, {schema}.limits_group(k.key, r.by_no, cardinality(s.bys)),
    min(r.burst) - count(*), p_now
  from unnest(p_keys) as k (key)
  cross join unnest(s.kinds, s.by_nos, s.rates, s.bursts)
    with ordinality as r (kind, by_no, rate, burst, no)
  where r.kind = 'rate'
  group by 2, 3
  order by 2, 3
  on conflict (queue, rule, grp) do update
  set at = p_now,
    tokens = excluded.tokens - s.bursts[b.rule] + least(s.bursts[b.rule],
      b.tokens + greatest(extract(epoch from p_now - b.at), 0) * s.rates[b.rule]);
end
$$
