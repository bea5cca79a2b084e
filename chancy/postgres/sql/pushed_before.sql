-- Which of these jobs exist, or existed until a moment ago, and whether they have finished. Run
-- before a push whose response was lost is repeated, and after it, as the lost one may have been
-- stored in between. Index: the primary key of jobs, finished_jobs_id; reads all of
-- recently_finished. No locks. Safe to repeat.
select found.id, found.finished
from (
  select
    u.id,
    exists (
      select
      from {schema}.finished_jobs as f
      where f.id = u.id)
    or u.id in (
      select unnest(r.ids)
      from {schema}.recently_finished as r) as finished
  from unnest($1::uuid[]) as u (id)) as found
where found.finished
  or exists (
    select
    from {schema}.jobs as j
    where j.id = found.id)
