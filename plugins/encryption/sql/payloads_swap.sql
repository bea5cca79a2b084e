-- Replaces the payloads $3 of the rows $1, $2 of a `PayloadTable` by $4, and returns how many it has
-- replaced. Rows whose payloads have changed since they were read, or that others have locked, are
-- left as they are.
-- Index: the primary key. Locks: the rows, in its order. Safe to repeat.
with wanted as (
  select n.id, n.name, n.was, n.payloads::jsonb as payloads
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as n (id, name, was, payloads)),
locked as materialized (
  select {key}, w.payloads
  from {schema}.{table} as t
  join wanted as w on ({key}) = ({wanted})
  where jsonb_build_object({payloads})::text = w.was
  order by {key}
  for update of t skip locked),
changed as (
  update {schema}.{table} as t
  set {changes}
  from locked as l
  where ({key}) = ({locked})
  returning 1)
select count(*) from changed
