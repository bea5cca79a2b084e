-- The holder of the horizon of this database: the session, prepared transaction, replication slot or
-- replica with the oldest snapshot, behind which no dead row can be removed. Reads the views of the
-- server. No locks. Safe to repeat.
select
  h.kind, h.name, h.application, h.state, h.held_s, h.query_s, h.behind, h.query,
  case when h.waits then (pg_blocking_pids(h.name::int))[1] end
from (
  select
    'session' as kind,
    a.pid::text as name,
    a.application_name as application,
    coalesce(a.state, a.backend_type) as state,
    extract(epoch from clock_timestamp() - a.xact_start)::float8 as held_s,
    extract(epoch from clock_timestamp() - a.query_start)::float8 as query_s,
    greatest(age(a.backend_xid), age(a.backend_xmin))::bigint as behind,
    left(a.query, 200) as query,
    coalesce(a.wait_event_type = 'Lock', false) as waits
  from pg_catalog.pg_stat_activity as a
  where a.datname = current_database()
    and a.pid <> pg_backend_pid()
    and a.backend_type <> 'autovacuum worker'
    and (a.backend_xid is not null or a.backend_xmin is not null)
  union all
  select
    'prepared transaction', p.gid, p.owner::text, 'prepared',
    extract(epoch from clock_timestamp() - p.prepared)::float8, null,
    age(p.transaction)::bigint, null, false
  from pg_catalog.pg_prepared_xacts as p
  where p.database = current_database()
  union all
  select
    'replication slot', s.slot_name::text, coalesce(s.plugin::text, s.slot_type),
    case when s.active then 'active' else 'inactive' end, null, null, age(s.xmin)::bigint, null,
    false
  from pg_catalog.pg_replication_slots as s
  where s.xmin is not null
  union all
  select
    'replica', r.pid::text, r.application_name, r.state, null, null,
    age(r.backend_xmin)::bigint, null, false
  from pg_catalog.pg_stat_replication as r
  where r.backend_xmin is not null) as h
order by h.behind desc, h.held_s desc nulls last
limit 1
