-- Fails steps that were found without a job; returns how many still had none; see the function.
-- Index: the primary keys. Locks: workflows by id, steps and joins by workflow and name.
-- Safe to repeat.
select set_config('lock_timeout', '500ms', true), {schema}.workflows_lose(
  $1::uuid[], $2::text[], $3::int[], $4::text[])
