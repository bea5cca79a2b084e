-- Pushes one job: the part of the schema that is meant for other programs, and for triggers. Call
-- it with named parameters; later versions may add parameters, and do not change the name, type or
-- meaning of existing ones. It validates its arguments, and writes nothing if it refuses them:
-- invalid_parameter_value (22023), unique_violation (23505) where on_conflict is 'raise', or CH002
-- for a job that expires in a queue whose rules would not count it.
-- Part of the transaction in which it is called: the notice is sent at commit.
-- Runs with the rights of the caller, which needs those of a producer.
-- Index, locks: as for {schema}.push_keyed, and no others. Safe to repeat with the same id.
create function {schema}.push(
  queue text, func text, arguments jsonb default '{}', priority int default 0,
  run_at timestamptz default null, delay interval default null, max_attempts int default 25,
  meta jsonb default null, id uuid default null, unique_key text default null,
  unique_scope text default 'function', unique_until text default 'finished',
  unique_period interval default null, on_conflict text default 'skip',
  expires_at timestamptz default null, expires_in interval default null
) returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  v_id uuid := coalesce(id, {schema}.new_id());
  v_due timestamptz := coalesce(run_at, clock_timestamp() + delay);
  v_expires timestamptz := coalesce(expires_at, clock_timestamp() + expires_in);
  v_made record;
  v_state smallint;
begin
  perform {schema}.check_push(queue, func, arguments, priority, max_attempts, meta);
  if run_at is not null and delay is not null then
    raise exception 'push: give run_at or delay, not both' using errcode = '22023';
  end if;
  if expires_at is not null and expires_in is not null then
    raise exception 'push: give expires_at or expires_in, not both' using errcode = '22023';
  end if;
  if v_expires <= greatest(v_due, clock_timestamp()) then
    raise exception 'push: expires_at % is not after the time at which the job is due: it could '
      'never start', v_expires using errcode = '22023';
  end if;
  if v_expires is not null then
    perform {schema}.check_counted(array[queue], 'a job that expires');
  end if;
  if unique_key is null then
    if unique_period is not null or on_conflict is distinct from 'skip' then
      raise exception 'push: unique_period and on_conflict need a unique_key'
        using errcode = '22023';
    end if;
    insert into {schema}.jobs as j (
      id, pos, state, queue, priority, func, arguments, run_at, max_attempts, meta,
      expires_at)
    values (
      v_id, nextval('{schema}.positions'), {schema}.admit(v_due, meta), queue, priority, func,
      arguments, v_due, max_attempts, meta, v_expires)
    on conflict do nothing
    returning state into v_state;
    if v_state = 0 then
      perform {schema}.wake(queue, false);
    end if;
    return v_id;
  end if;
  perform {schema}.check_unique(
    unique_key, unique_scope, unique_until, unique_period, on_conflict);
  select * into v_made from {schema}.push_keyed(
    v_id, nextval('{schema}.positions'), queue, priority::smallint, func, arguments, v_due,
    max_attempts, meta, null,
    {schema}.unique_key(
      unique_scope,
      case unique_scope when 'function' then func when 'queue' then queue else '' end,
      unique_key),
    on_conflict, unique_until = 'started', extract(epoch from unique_period)::float8, null,
    v_expires);
  if not v_made.created and on_conflict = 'raise' then
    raise exception 'push: the unique key % is held by job %', quote_literal(unique_key),
      v_made.stored using errcode = 'unique_violation', detail = v_made.stored::text;
  end if;
  if v_made.notice like 'w:%' then
    perform {schema}.wake(queue, false);
  elsif v_made.notice is not null then
    perform pg_notify({schema}.channel(), v_made.notice);
  end if;
  return v_made.stored;
end
$$
