-- Deletes those of the jobs $1 that failed from the history. Index: finished_jobs_id of each day,
-- once for each id. Locks: the rows. Safe to repeat.
delete from {schema}.finished_jobs
where id = any($1::uuid[])
  and state = 5
