-- Locks the row of a queue before the calling statement changes it, and fails after 2 s if another
-- transaction has locked it. Returns true, also if there is no such row.
-- Index: the primary key of queues. Locks: its row, until the transaction ends. Safe to repeat.
create function {schema}.lock_queue(p_name text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
begin
  perform from {schema}.queues q where q.name = p_name for update;
  return true;
exception when lock_not_available then
  raise exception 'another transaction has locked the row of the queue %: end it, or try again',
    quote_literal(p_name) using errcode = 'lock_not_available';
end
$$
