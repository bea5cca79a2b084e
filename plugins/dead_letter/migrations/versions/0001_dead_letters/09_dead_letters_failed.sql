-- The failed jobs of the history by the time of their end, for the sweep. Jobs that did not fail
-- are not in it, and pay nothing. Each day that is attached later gets one by itself.
create index dead_letters_failed on only {schema}.finished_jobs (finished_at, id)
where state = 5
