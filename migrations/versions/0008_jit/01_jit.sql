-- Functions that pin their plans by forbidding others are not compiled. Up to Postgres 17 a node
-- that is forbidden and has no substitute, such as the scan of a small table, adds 10,000,000,000 to
-- the cost of its plan. A server that can compile then did so at each call: with Postgres 15 of Debian
-- to settle a job took 103 ms, and takes 0.25 ms.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid
    from pg_catalog.pg_proc p
    where p.pronamespace = '{schema}'::regnamespace
      and p.prokind = 'f'
      and exists (select from unnest(p.proconfig) as c (setting) where c.setting like 'enable\_%=off')
  loop
    execute format('alter function %s set jit = off', v_function);
  end loop;
end
$$
