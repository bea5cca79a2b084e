-- The rows of the audit below the id $1, newest first, at most $2; only the row $3 if it is given.
-- Index: the primary key, backwards. No locks. Safe to repeat.
select
  id, {schema}.utc(at), who, action, subject, detail::text, jobs, {schema}.utc(ended_at), error,
  stopped_by
from {schema}.dashboard_audit
where id < $1::bigint
  and ($3::bigint is null or id = $3)
order by id desc
limit $2::int
