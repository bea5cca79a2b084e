-- Scans up to $2 running batches after $1; returns those that are not open and have no job that has
-- not ended, for example because a process died between closing and ending a batch. Also returns the
-- last one scanned. Index: batches_going, the primary keys. No locks. Safe to repeat.
select s.id, s.stuck
from (
  select b.id, lead(b.id) over (order by b.id) is null as last, not b.open
    and coalesce((
      select sum(c.pending)
      from {schema}.batches_shards as c
      where c.batch_id = b.id), 0) = 0
    and not exists (
      select
      from {schema}.batches_added as a
      where a.batch_id = b.id) as stuck
  from (
    select *
    from {schema}.batches as o
    where o.state = 1
      and o.id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
    order by o.id
    limit $2::int) as b) as s
where s.stuck
  or s.last
order by s.id
