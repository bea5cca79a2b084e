-- The jobs that dashboard_<p_source> returns, in its order. No locks of its own. Safe to repeat.
create function {schema}.dashboard_scan(
  p_source text, p_queue text, p_worker uuid, p_rows int, p_after jsonb
)
returns setof {schema}.dashboard_job
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return query execute format(
    'select * from {schema}.%I($1, $2, $3, $4)', 'dashboard_' || p_source)
  using p_queue, p_worker, p_rows, p_after;
end
$$
