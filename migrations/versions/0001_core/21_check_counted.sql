-- Refuses jobs that would run from Postgres in a queue whose rules another broker enforces, because
-- that broker does not count them: CH002; otherwise returns true. p_what: what they are, such as
-- 'a step'.
-- Index: the primary key of queues. Locks: none.
create function {schema}.check_counted(p_queues text[], p_what text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text;
  v_broker text;
begin
  select q.name, q.broker into v_name, v_broker from {schema}.queues q
  where q.name = any (p_queues) and q.broker <> 'postgres' and q.rules is not null
  limit 1;
  if found then
    raise exception '% cannot use the queue %: it would run from Postgres, and the broker %, which '
      'enforces the rules of the queue, would not count it: use a queue in Postgres, or one without '
      'rules', p_what, quote_literal(v_name), quote_literal(v_broker)
      using errcode = 'CH002';
  end if;
  return true;
end
$$
