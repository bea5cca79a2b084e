-- Starts steps as workflows_start does, and ends those that wait for signals which have already
-- arrived. p_most: see workflows_advance; p_guarded: see workflows_start.
-- Index: the primary keys. Locks: the caller holds the workflows, exclusively where signals came
-- early; then as workflows_advance. Safe to repeat.
create function {schema}.workflows_begin(
  p_ids uuid[], p_names text[], p_most int default null, p_guarded boolean default true
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_ids uuid[]; v_names text[]; v_runs int[]; v_payloads text[];
begin
  select h.o_ids, h.o_names, h.o_runs, h.o_payloads into v_ids, v_names, v_runs, v_payloads
  from {schema}.workflows_start(p_ids, p_names, p_guarded) h;
  if v_ids is not null then
    perform {schema}.workflows_heard(v_ids);
    perform {schema}.workflows_advance(v_ids, v_names, v_runs, null,
      array_fill(4::smallint, array[cardinality(v_ids)]), v_payloads, null, null, false, p_most);
  end if;
end
$$
