-- Counts the waiting ones of some jobs that {schema}.cancel is about to cancel; it calls this function.
-- While a report has not been seen by a leader for an hour no more are stored, so that they do not pile
-- up in an application without the plugin. Index: the primary key of jobs, metrics_at. No locks. Not
-- safe to repeat: the jobs would count twice.
create function {schema}.on_cancelled(p_ids uuid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_metrics regclass := to_regclass(format('%I.metrics', {schema_text}));
begin
  -- A role whose privileges were granted before the table existed can still cancel jobs.
  if not (has_table_privilege(v_metrics, 'select') and has_table_privilege(v_metrics, 'insert')) then
    return;
  end if;
  insert into {schema}.metrics
  select -1, clock_timestamp(), c.queue, c.func, 0, 0, 0, 0, 0,
    count(*) filter (where not c.expired), count(*) filter (where c.expired), 0, 0, 0, 0, 0,
    '{}', '{}', '{}'
  from (
    select j.queue, j.func, {schema}.expired(j.expires_at, j.attempt, j.crashes)
    from {schema}.jobs j
    where j.id = any (p_ids) and j.state <> 1) as c (queue, func, expired)
  where not exists (
    select from {schema}.metrics m
    where m.step = -1 and m.at < clock_timestamp() - interval '1 hour')
  group by c.queue, c.func;
end
$$
