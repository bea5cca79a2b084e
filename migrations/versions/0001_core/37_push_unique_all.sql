-- Stores jobs in the given order, some of them with unique keys. Called by {schema}.push_unique.
-- Raises CH001 for a job whose key is taken and whose rule is to raise: with its id, the id of the
-- job that holds the key, and its function.
-- Index: as for {schema}.push_keyed. Locks: the jobs without keys, then the others by key.
create function {schema}.push_unique_all(
  p_ids uuid[], p_queues text[], p_priorities smallint[], p_funcs text[], p_arguments text[],
  p_run_ats timestamptz[], p_delays float8[], p_max_attempts int[], p_metas text[],
  p_limits text[], p_keys bytea[], p_on_conflict text[], p_until_claim boolean[],
  p_periods float8[], p_caps float8[], p_expires_ats timestamptz[], p_expires_s float8[],
  p_guarded boolean
) returns table (id uuid, stored uuid)
language plpgsql rows 10
set search_path = pg_catalog, pg_temp
{pinned_plan}
as $$
#variable_conflict use_column
declare
  v_positions bigint[] := array(
    select nextval('{schema}.positions') from generate_series(1, cardinality(p_ids)));
  v_notices text[];
  v_job record;
  v_made record;
begin
  if p_expires_ats is not null or p_expires_s is not null then
    perform {schema}.check_counted(array(
      select e.queue from unnest(p_queues, p_expires_ats, p_expires_s) as e (queue, at, s)
      where e.at is not null or e.s is not null), 'a job that expires');
  end if;
  with pushed as (
    insert into {schema}.jobs (
      id, pos, state, queue, priority, func, arguments, run_at, max_attempts, meta, limits,
      expires_at)
    select t.id, v_positions[t.place], {schema}.admit(t.due, t.meta::jsonb),
      t.queue, t.priority, t.func, t.arguments::jsonb, t.due, t.max_attempts, t.meta::jsonb,
      t.limits::jsonb,
      coalesce(t.expires_at, clock_timestamp() + t.expires_s * interval '1 second')
    from (
      select u.*, coalesce(u.run_at, clock_timestamp() + u.delay_s * interval '1 second') as due
      from unnest(
        p_ids, p_queues, p_priorities, p_funcs, p_arguments, p_run_ats, p_delays, p_max_attempts,
        p_metas, p_limits, p_keys, p_expires_ats, p_expires_s
      ) with ordinality as u (
        id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta, limits, key,
        expires_at, expires_s, place)
      where u.key is null) t
    on conflict (id) do nothing
    returning queue, state)
  select array_agg(distinct 'w:' || p.queue) into v_notices from pushed p where p.state = 0;
  for v_job in
    select u.*, coalesce(u.run_at, clock_timestamp() + u.delay_s * interval '1 second') as due,
      coalesce(u.expires_at, clock_timestamp() + u.expires_s * interval '1 second') as expires
    from unnest(
      p_ids, p_queues, p_priorities, p_funcs, p_arguments, p_run_ats, p_delays, p_max_attempts,
      p_metas, p_limits, p_keys, p_on_conflict, p_until_claim, p_periods, p_caps,
      p_expires_ats, p_expires_s
    ) with ordinality as u (
      id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta, limits, key,
      on_conflict, until_claim, period_s, cap_s, expires_at, expires_s, place)
    where u.key is not null
    order by u.key, u.place
  loop
    select * into v_made from {schema}.push_keyed(
      v_job.id, v_positions[v_job.place], v_job.queue, v_job.priority, v_job.func,
      v_job.arguments::jsonb, v_job.due, v_job.max_attempts, v_job.meta::jsonb,
      v_job.limits::jsonb, v_job.key, v_job.on_conflict, v_job.until_claim, v_job.period_s,
      v_job.cap_s, v_job.expires);
    if v_made.notice is not null and v_made.notice <> all (coalesce(v_notices, '{}')) then
      v_notices := v_notices || v_made.notice;
    end if;
    if not v_made.created then
      if v_job.on_conflict = 'raise' then
        raise exception 'the unique key of job % is held by job %', v_job.id, v_made.stored
          using errcode = 'CH001', detail = concat_ws(' ', v_job.id, v_made.stored, v_job.func);
      end if;
      return query select v_job.id, v_made.stored;
    end if;
  end loop;
  perform case
      when n.notice like 'w:%' then {schema}.wake(substr(n.notice, 3), p_guarded, cardinality(p_ids))
      else pg_notify({schema}.channel(), n.notice)
    end
  from unnest(v_notices) as n (notice);
end
$$
