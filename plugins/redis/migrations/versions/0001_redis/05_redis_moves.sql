-- Jobs of the table jobs that are being moved to Redis, each with the lease of the worker that moves
-- it, and the time from which another worker may take the move over, under another lease. A job stays
-- unchanged in jobs until Redis has it. Rows live for milliseconds.
-- problem: the last error if Redis has refused the job, as often as `refusals` says; without another
-- attempt until `taken_until`.
-- seen: the version (xmin) of the job that was taken first. Redis may have that version; a later
-- version must not be deleted in its place.
create table {schema}.redis_moves (
  id uuid primary key,
  pos bigint generated always as identity,
  queue text not null,
  taken_until timestamptz not null,
  lease uuid not null,
  problem text,
  refusals int not null default 0,
  seen text
)
with (fillfactor = 50)
