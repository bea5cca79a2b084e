-- Jobs of the table jobs that are on their way to Redis: who takes them there, and until when nobody
-- else does. A job stays as it is in jobs until Redis has it. Rows live for milliseconds.
-- seen: the version (xmin) of the job that was taken first. Redis may have that version; a later one
-- must not be deleted for it.
create table {schema}.redis_moves (
  id uuid primary key,
  pos bigint generated always as identity,
  queue text not null,
  taken_until timestamptz not null,
  problem text,
  seen text
)
with (fillfactor = 50)
