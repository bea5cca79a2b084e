-- Serves claims: the held jobs of a partition.
create index jobs_limits_held
on {schema}.jobs (queue, (meta #>> '{limits,partition}'), priority desc, pos)
where state = 3 and meta ? 'limits'
