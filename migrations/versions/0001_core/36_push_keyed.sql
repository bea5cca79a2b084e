-- Stores one job with a unique key, or finds the job that holds the key. Callers push several keys
-- in key order: every lock except those on replaced waiting jobs is taken by key, and those are
-- also taken by key, so two transactions that push the same keys cannot deadlock.
-- A conflict locks nothing unless the job is replaced: a skipped push blocks no other transaction.
-- The function waits for an open transaction that has pushed the key or is finishing its job.
-- Each statement sees what was committed before it began. If the conflicting job is gone by the
-- time it is read, the function starts over. In a transaction with a single snapshot it fails with
-- 40001.
-- p_on_conflict 'replace': the waiting job takes over arguments, priority, time, expiry, and a hold
-- if the push has one; with p_cap_s it is due at most that many seconds after its own push. A running
-- job is left unchanged. A held one is judged again, with its new arguments.
-- Index: the primary keys, jobs_unique. Locks: a job that it replaces, before it is judged. Safe to
-- repeat while the job is unfinished.
create function {schema}.push_keyed(
  p_id uuid, p_pos bigint, p_queue text, p_priority smallint, p_func text, p_arguments jsonb,
  p_due timestamptz, p_max_attempts int, p_meta jsonb, p_limits jsonb, p_key bytea,
  p_on_conflict text, p_until_claim boolean, p_period_s float8, p_cap_s float8,
  p_expires timestamptz, out stored uuid, out created boolean, out notice text
) language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_open boolean;
  v_due timestamptz;
  v_state smallint;
  v_hold text;
begin
  for v_round in 1 .. 1000 loop
    v_open := false;
    stored := null;
    if p_period_s is not null then
      select u.job_id into stored from {schema}.unique_periods u
      where u.unique_key = p_key and u.until > clock_timestamp();
      v_open := found;
      if not v_open then
        insert into {schema}.unique_periods as u (unique_key, job_id, until)
        values (p_key, p_id, clock_timestamp() + p_period_s * interval '1 second')
        on conflict (unique_key) do update set job_id = excluded.job_id, until = excluded.until
        where u.until <= clock_timestamp();
        continue when not found;
      end if;
    end if;
    if not v_open then
      v_state := {schema}.admit(p_due, p_meta);
      insert into {schema}.jobs (
        id, pos, state, queue, priority, func, arguments, run_at, max_attempts, meta, limits,
        unique_key, unique_until_claim, unique_replaces, expires_at)
      values (
        p_id, p_pos, v_state, p_queue, p_priority, p_func, p_arguments, p_due, p_max_attempts,
        p_meta, p_limits, p_key, nullif(p_until_claim, false),
        nullif(p_on_conflict = 'replace', false), p_expires)
      on conflict do nothing;
      if found then
        stored := p_id;
        created := true;
        notice := case when v_state = 0 then 'w:' || p_queue end;
        return;
      end if;
      stored := coalesce(
        (select j.id from {schema}.jobs j where j.unique_key = p_key),
        (select j.id from {schema}.jobs j where j.id = p_id));
      if p_period_s is not null then
        update {schema}.unique_periods u
        set job_id = coalesce(stored, p_id), until = clock_timestamp()
        where u.unique_key = p_key;
      end if;
      continue when stored is null;
    end if;
    created := stored = p_id;
    if created or p_on_conflict <> 'replace' then
      return;
    end if;
    if p_meta ? 'hold' then
      v_hold := jsonb_build_object('hold', p_meta -> 'hold');
    end if;
    select a.due, {schema}.admit(a.due, {schema}.with_meta(j.meta, v_hold)) into v_due, v_state
    from {schema}.jobs j
    cross join lateral (
      select least(p_due, j.pushed_at + p_cap_s * interval '1 second') as due) a
    where j.id = stored
    for no key update of j;
    update {schema}.jobs j
    set arguments = p_arguments, priority = p_priority, run_at = v_due, unique_replaces = true,
      expires_at = p_expires,
      -- Without the marks of jobs that are held for another reason: claims of those would start it.
      meta = case
        when v_hold is null then j.meta
        else {schema}.with_meta(j.meta, v_hold) - 'unknown_function'
          #- case
            when j.meta #> '{limits,partition}' is null then '{}'
            else '{limits,partition}'
          end::text[]
      end,
      state = v_state,
      pos = case
        when j.state = 0 and v_state = 0 and j.priority = p_priority then j.pos else p_pos
      end
    -- Within its period a job that has released its key at its claim may wait again.
    where j.id = stored and j.state in (0, 2, 3)
      and (j.unique_key = p_key or (v_open and j.unique_key is null))
    returning case when j.state = 0 then 'r:' || j.queue end into notice;
    -- A claim may have released the key since the insertion: then this push is a new job.
    if found or v_open or exists (
        select from {schema}.jobs j where j.id = stored and j.unique_key = p_key) then
      return;
    end if;
  end loop;
  raise exception 'a unique key changed hands 1,000 times while it was looked at'
    using errcode = 'serialization_failure';
end
$$
