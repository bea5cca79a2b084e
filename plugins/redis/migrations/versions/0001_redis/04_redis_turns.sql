-- The relay that may send the events of a prefix: one at a time, so that they keep their order. Each
-- change of the holder begins a higher term.
create table {schema}.redis_turns (
  prefix text primary key,
  holder uuid not null,
  term bigint not null,
  until timestamptz not null
)
with (fillfactor = 10)
