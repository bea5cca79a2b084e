-- The results of the last steps of a workflow after place $2, by place; none after 8 MiB, as stored. The
-- first column is the place to go on after; null for the very last step. Index: the primary key of
-- workflows_steps; all steps of the workflow. No locks. Safe to repeat.
select r.place, r.name, r.func, r.result::text
from (
  select
    case when lead(s.name) over (order by s.place) is not null then s.place end as place,
    s.name, s.func, s.result, sum(pg_column_size(s.result)) over (
      order by s.place rows between unbounded preceding and 1 preceding) as bytes_before
  from {schema}.workflows_steps as s
  where s.workflow_id = $1::uuid
    and s.place > $2::int
    and s.next = '{}'
    and s.joins = '{""}'
    and s.undoes is null) as r
where coalesce(r.bytes_before, 0) < 8388608
order by r.place nulls last
