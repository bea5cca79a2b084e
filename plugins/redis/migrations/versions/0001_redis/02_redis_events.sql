-- Events of streams that were sent inside transactions, until a relay has taken them over: one row
-- for the events, up to 1,000, that one call sends to one partition. A row is updated only after a
-- problem, so that its pages stay as they are written. Applications that share the schema are told
-- apart by their prefixes, and each relays its own rows.
create table {schema}.redis_events (
  prefix text not null,
  pos bigint generated always as identity,
  id uuid not null,
  stream text not null,
  partition int not null,
  about jsonb not null,
  events int not null,
  width int not null,
  data bytea not null,
  sent_at timestamptz not null default clock_timestamp(),
  problem text,
  primary key (prefix, pos)
)
