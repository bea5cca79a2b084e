-- Starts or fails some steps of a piece; returns whether the piece had them; see the function.
-- Index: the primary keys. Locks: one workflow, its piece. Safe to repeat.
select set_config('lock_timeout', '500ms', true), {schema}.workflows_part(
  $1::uuid, $2::uuid, $3::text[], $4::text)
