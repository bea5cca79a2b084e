-- Jobs of the table jobs that are being moved to Redis: the holder of each move, and the time until
-- which no other may take it. A job stays unchanged in jobs until Redis has it. Rows live for
-- milliseconds.
-- seen: the version (xmin) of the job that was taken first. Redis may have that version; a later
-- version must not be deleted in its place.
create table {schema}.redis_moves (
  id uuid primary key,
  pos bigint generated always as identity,
  queue text not null,
  taken_until timestamptz not null,
  problem text,
  seen text
)
with (fillfactor = 50)
