-- Deletes expired rows of callers that wait for jobs: at most $1 that are older than a day. Index:
-- none, the table is small. Locks: those rows, skipping locked ones. Safe to repeat.
delete from {schema}.awaited
where ctid = any (array(
  select a.ctid
  from {schema}.awaited as a
  where a.asked_at < statement_timestamp() - interval '1 day'
  limit $1::int
  for update skip locked))
returning 1
