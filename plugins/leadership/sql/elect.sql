-- Takes the lease if it is free, or renews it if $1 holds it; returns the current term and the
-- seconds it has left. A holder keeps its term until its lease expires. A lease that expired while
-- this statement waited for the row is not taken: the caller may have been suspended since. A lease
-- from the future counts as free: the clock of the server was set back.
-- Index: the primary key of leadership_leases. Locks: its row, only where it is written. Safe to
-- repeat: a holder that took the lease in a call whose response was lost renews it in the next.
with taken as (
  insert into {schema}.leadership_leases as l (name, holder, term, renewed_at, expires_at)
  select 'leader', $1::uuid, 1, clock_timestamp(), clock_timestamp() + $2::float8 * interval '1 s'
  where not exists (
    select from {schema}.leadership_leases o
    where o.name = 'leader' and o.holder <> $1::uuid and o.expires_at > clock_timestamp()
      and o.renewed_at < clock_timestamp() + interval '5 s')
  on conflict (name) do update
  set holder = excluded.holder,
    term = l.term
      + case when l.holder = excluded.holder and l.expires_at > clock_timestamp() then 0 else 1 end,
    renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + $2::float8 * interval '1 s'
  where (l.holder = excluded.holder and l.expires_at > clock_timestamp())
    or l.expires_at <= statement_timestamp()
    or l.renewed_at >= clock_timestamp() + interval '5 s'
  returning l.term, l.expires_at)
select true as leads, t.term, extract(epoch from t.expires_at - clock_timestamp())::float8 as left_s
from taken t
union all
select false, l.term, extract(epoch from l.expires_at - clock_timestamp())::float8
from {schema}.leadership_leases l
where l.name = 'leader' and not exists (select from taken)
