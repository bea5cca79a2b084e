-- Replaces the payloads $3 of the rows $1, $2 by $4, and returns how many it has replaced. Rows whose
-- payloads have changed since they were read, or that others have locked, are left as they are.
-- Index: the primary key. Locks: the rows, in its order. Safe to repeat.
with wanted as (
  select n.id, n.name, n.was, n.payloads::jsonb as payloads
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as n (id, name, was, payloads)),
locked as materialized (
  select t.batch_id, t.kind, w.payloads
  from {schema}.batches_callbacks as t
  join wanted as w on t.batch_id = w.id and t.kind = w.name::smallint
  where jsonb_build_object(
      'arguments', t.arguments)::text = w.was
  order by t.batch_id, t.kind
  for update of t skip locked),
changed as (
  update {schema}.batches_callbacks as t
  set
    arguments = coalesce(nullif(l.payloads -> 'arguments', 'null'), t.arguments)
  from locked as l
  where t.batch_id = l.batch_id and t.kind = l.kind
  returning 1)
select count(*) from changed
