-- Serves the jobs that wait for a worker that knows their function.
create index jobs_set_aside on {schema}.jobs (queue, func, priority desc, pos)
where state = 3 and meta ? 'unknown_function'
