-- One step of a walk through the jobs with lines, in the order of their ids: of the next 100 after $1,
-- removes up to $2 lines of jobs that are no longer stored, if their last line is a day old. Returns
-- the last id, or null at the end, and the number of removed lines. Index: the primary key, by a loose
-- scan; the primary key of jobs and finished_jobs_id, once for each job. Locks: the rows, skipping
-- locked ones. Safe to repeat.
with recursive walk (job_id, place) as (
  (
    select l.job_id, 1
    from {schema}.job_logs as l
    where l.job_id > $1::uuid
    order by l.job_id
    limit 1)
  union all
  select n.job_id, w.place + 1
  from walk as w
  cross join lateral (
    select l.job_id
    from {schema}.job_logs as l
    where l.job_id > w.job_id
    order by l.job_id
    limit 1) as n
  where w.place < 100),
unstored as (
  select w.job_id
  from walk as w
  where not exists (select from {schema}.jobs as j where j.id = w.job_id)
    and not exists (select from {schema}.finished_jobs as f where f.id = w.job_id)
    and clock_timestamp() - interval '1 day' > (
      select l.at
      from {schema}.job_logs as l
      where l.job_id = w.job_id
      order by l.number desc
      limit 1)),
gone as (
  delete from {schema}.job_logs
  where ctid = any (array(
    select l.ctid
    from unstored as u
    join {schema}.job_logs as l on l.job_id = u.job_id
    limit $2::int
    for update of l skip locked))
  returning 1)
select (select w.job_id from walk as w order by w.place desc limit 1), (select count(*) from gone)
