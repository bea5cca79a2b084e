-- Serves {schema}.release: the jobs that wait to be released, by their key.
create index jobs_on_hold on {schema}.jobs (left(meta ->> 'hold', 200), pos)
where state = 3 and meta ? 'hold'
