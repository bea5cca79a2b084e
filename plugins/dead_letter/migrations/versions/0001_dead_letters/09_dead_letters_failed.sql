-- The failed jobs of the history by finish time, for the sweep. Jobs that did not fail are not in
-- the index and add no cost. Each partition that is attached later gets such an index
-- automatically.
create index dead_letters_failed on only {schema}.finished_jobs (finished_at, id)
where state = 5
