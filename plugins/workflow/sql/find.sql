-- Workflows, newest first: $1 ids, $2 name, $3 states (null matches all); $4 older than this one;
-- $5 at most. Index: the primary key, or workflows_name. No locks. Safe to repeat.
select
  w.id, w.name, w.state, w.steps, w.error, {schema}.utc(w.pushed_at), {schema}.utc(w.finished_at)
from {schema}.workflows as w
where ($1::uuid[] is null or w.id = any ($1::uuid[]))
  and ($2::text is null or w.name = $2::text)
  and ($3::smallint[] is null or w.state = any ($3::smallint[]))
  and ($4::uuid is null or w.id < $4::uuid)
order by w.id desc
limit $5::int
