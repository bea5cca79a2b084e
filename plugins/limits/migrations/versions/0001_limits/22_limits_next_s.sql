-- Returns the seconds until a job of a queue may start that waits for a token or a pause now; null:
-- none waits for a time, or the queue is paused. A time that passed more than a second ago does not
-- count: claims since then have left the job for another reason. Neither do tokens for the whole queue
-- that were there when the last claim took no job: it is not repeated until there are more.
-- Index: the primary keys, limits_partitions_ready. No locks. Safe to repeat.
create function {schema}.limits_next_s(p_queue text) returns float8
language sql stable
set search_path = pg_catalog, pg_temp
begin atomic
  select case when w.at > clock_timestamp() - interval '1 second'
    then greatest(0, extract(epoch from w.at - clock_timestamp()))::float8 end
  from (
    select least(
      (select p.ready_at from {schema}.limits_partitions p
       where p.queue = p_queue and p.ready_at is not null order by p.ready_at limit 1),
      (select x.at
       from (
         select q.clock, q.claimed_at, max(greatest(b.paused_until, b.at + interval '1 second'
           * ((1 - b.tokens) / q.rates[b.rule]))) as at
         from {schema}.limits_queues q
         join {schema}.limits_buckets b on b.queue = q.queue and b.grp = ''
         where q.queue = p_queue and q.by_nos[b.rule] = 0
           and exists (select from {schema}.jobs j where j.queue = p_queue and j.state in (0, 3))
         group by q.queue) x
       -- Claims compare tokens with a tolerance, and times are rounded.
       where x.claimed_at = x.clock or x.at > x.clock - interval '1 millisecond')
    ) as at) w
  where exists (
    select from {schema}.queues q
    where q.name = p_queue
      and (q.paused_at is null or q.resume_at <= clock_timestamp()));
end
