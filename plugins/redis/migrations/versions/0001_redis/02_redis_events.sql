-- Events of streams that were sent inside transactions, until a relay has taken them over: a row
-- for what one call sends to one partition, up to 1,000 of them. A row is never updated but for a
-- problem, so that its pages stay as they are written.
create table {schema}.redis_events (
  pos bigint generated always as identity primary key,
  id uuid not null,
  stream text not null,
  partition int not null,
  about jsonb not null,
  events int not null,
  width int not null,
  data bytea not null,
  sent_at timestamptz not null default clock_timestamp(),
  problem text
)
