-- Returns whether a worker leads in a term, and keeps any other worker from leading until the
-- transaction ends: the lock on the row makes the next holder wait. Without it a leader that was
-- frozen between the check and its commit would commit in the term of another worker. To keep a
-- frozen leader from blocking the others, its transaction may be idle for as long as the lease
-- lasts; the server then ends it.
-- Term 0 is that of workers that all lead. Index: the primary key. Locks: the row, shared.
create function {schema}.leads(p_holder uuid, p_term bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_left_s float8;
  v_idle_ms bigint;
begin
  if p_term = 0 then
    return true;
  end if;
  select extract(epoch from l.expires_at - clock_timestamp()) into v_left_s
  from {schema}.leadership_leases l
  where l.name = 'leader' and l.holder = p_holder and l.term = p_term
    and l.expires_at > clock_timestamp()
  for share;
  if not found then
    return false;
  end if;
  select setting::bigint into v_idle_ms
  from pg_settings where name = 'idle_in_transaction_session_timeout';
  if v_idle_ms = 0 or v_idle_ms > v_left_s * 1000 then
    perform set_config('idle_in_transaction_session_timeout',
      greatest(ceil(v_left_s * 1000), 1)::bigint::text, true);
  end if;
  return true;
end
$$
