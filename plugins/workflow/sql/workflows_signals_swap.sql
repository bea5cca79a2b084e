-- Replaces the payloads $3 of the rows $1, $2 by $4, and returns how many it has replaced. Rows whose
-- payloads have changed since they were read, or that others have locked, are left as they are.
-- Index: the primary key. Locks: the rows, in its order. Safe to repeat.
with wanted as (
  select n.id, n.name, n.was, n.payloads::jsonb as payloads
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as n (id, name, was, payloads)),
locked as materialized (
  select t.workflow_id, t.name, w.payloads
  from {schema}.workflows_signals as t
  join wanted as w on t.workflow_id = w.id and t.name = w.name
  where jsonb_build_object(
      'payload', t.payload)::text = w.was
  order by t.workflow_id, t.name
  for update of t skip locked),
changed as (
  update {schema}.workflows_signals as t
  set
    payload = coalesce(nullif(l.payloads -> 'payload', 'null'), t.payload)
  from locked as l
  where t.workflow_id = l.workflow_id and t.name = l.name
  returning 1)
select count(*) from changed
