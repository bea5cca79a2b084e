-- Writes what user $1 does ($2) to a subject ($3), with which filter or settings ($4), and how many
-- jobs it has changed so far ($5); $6: whether that is all. Deletes up to 100 rows older than $7
-- days. Returns the id. Index: the primary key; the oldest rows have the lowest ids. Locks: the rows
-- that it deletes. Repeated, it writes another row.
with gone as (
  delete from {schema}.dashboard_audit as a
  using (
    select o.id
    from {schema}.dashboard_audit as o
    order by o.id
    limit 100
    for update skip locked) as old
  where a.id = old.id
    and a.at < now() - $7::float8 * interval '1 day')
insert into {schema}.dashboard_audit (who, action, subject, detail, jobs, ended_at)
values ($1::text, $2::text, $3::text, $4::jsonb, $5::int, case when $6::boolean then now() end)
returning id
