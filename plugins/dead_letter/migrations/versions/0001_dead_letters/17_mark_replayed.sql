-- Marks dead letters as replayed, each by the replay with this id; returns their ids. Index: the
-- primary key. Locks: the dead letters; the caller holds them. Not to be repeated: it counts.
create function {schema}.mark_replayed(p_ids uuid[], p_replays uuid[]) returns setof uuid
language sql rows 100
set search_path = pg_catalog, pg_temp
as $$
  update {schema}.dead_letters d
  set replayed_at = clock_timestamp(), replayed_as = n.replay, replays = d.replays + 1
  from unnest(p_ids, p_replays) as n (id, replay)
  where d.id = n.id
  returning d.id
$$
