-- Counts jobs that were added to a batch later. Index: none. Locks: what it inserts. Not to be
-- repeated.
insert into {schema}.batches_added (batch_id, jobs)
values ($1::uuid, $2::int)
