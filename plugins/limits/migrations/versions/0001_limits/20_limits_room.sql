-- Returns how many jobs the rules for a whole queue let start now, of which p_running run; null: any
-- number.
-- Index: the primary key of limits_buckets. No locks. Safe to repeat.
create function {schema}.limits_room(
  s {schema}.limits_queues, p_running int, p_now timestamptz
) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
  return (
    select min(case r.kind
      when 'concurrency' then r.most - p_running
      else case
        when b.paused_until > p_now then 0
        when b.at is null then floor(r.burst)
        else floor(least(r.burst,
          b.tokens + greatest(extract(epoch from p_now - b.at), 0) * r.rate) + 1e-9)
      end end)::int
    from unnest(s.kinds, s.by_nos, s.maxima, s.rates, s.bursts)
      with ordinality as r (kind, by_no, most, rate, burst, no)
    left join {schema}.limits_buckets b
      on b.queue = s.queue and b.rule = r.no and b.grp = ''
    where r.by_no = 0 and r.kind in ('concurrency', 'rate'));
end
$$
