-- Replaces the payloads $3 of the rows $1, $2 by $4, and returns how many it has replaced. Rows whose
-- payloads have changed since they were read, or that others have locked, are left as they are.
-- Index: the primary key. Locks: the rows, in its order. Safe to repeat.
with wanted as (
  select n.id, n.name, n.was, n.payloads::jsonb as payloads
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as n (id, name, was, payloads)),
locked as materialized (
  select t.id, w.payloads
  from {schema}.dead_letters as t
  join wanted as w on t.id = w.id
  where jsonb_build_object(
      'arguments', t.arguments,
      'errors', t.errors,
      'steps', t.meta -> 'steps')::text = w.was
  order by t.id
  for update of t skip locked),
changed as (
  update {schema}.dead_letters as t
  set
    arguments = coalesce(nullif(l.payloads -> 'arguments', 'null'), t.arguments),
    errors = coalesce(nullif(l.payloads -> 'errors', 'null'), t.errors),
    meta = case
      when l.payloads -> 'steps' = 'null' then t.meta
      else jsonb_set(t.meta, '{steps}', l.payloads -> 'steps')
    end
  from locked as l
  where t.id = l.id
  returning 1)
select count(*) from changed
