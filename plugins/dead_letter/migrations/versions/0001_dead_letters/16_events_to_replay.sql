-- Returns which of these dead letters are of events and can be replayed, with the id of the replay and
-- its place among the given ones: with p_force also those that were replayed before. Those whose
-- replay has this id already are done. Index: the primary key. Locks: the dead letters by id; fails
-- after waiting a second for one. Safe to repeat.
create function {schema}.events_to_replay(p_ids uuid[], p_replays uuid[], p_force boolean)
returns table (id uuid, queue text, event jsonb, replay uuid, place bigint, done boolean)
language sql rows 100
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
  select d.id, d.queue, d.meta -> 'event', n.replay, n.place, d.replayed_as is not distinct from n.replay
  from {schema}.dead_letters d
  join unnest(p_ids, p_replays) with ordinality as n (id, replay, place) on n.id = d.id
  where d.reason = 'event'
    and (d.replayed_at is null or p_force or d.replayed_as = n.replay)
  order by d.id
  for update of d
$$
