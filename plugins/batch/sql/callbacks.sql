-- The callbacks of a batch, by kind. Index: the primary key. No locks. Safe to repeat.
select c.kind, c.job_id, c.func, {schema}.utc(c.pushed_at)
from {schema}.batches_callbacks as c
where c.batch_id = $1::uuid
order by c.kind
