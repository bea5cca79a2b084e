-- Fails steps that were seen without a job; gives how many had none yet; see the function.
-- Index: the primary keys. Locks: workflows by id, steps and joins by workflow and name.
-- Safe to repeat.
select {schema}.workflows_lose($1::uuid[], $2::text[], $3::int[], $4::text[])
