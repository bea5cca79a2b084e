-- Serves claims: the held jobs of a partition. A job on hold is not held by the rules, even if its push
-- copied the mark of one that was.
create index jobs_limits_held
on {schema}.jobs (queue, (meta #>> '{limits,partition}'), priority desc, pos)
where state = 3 and meta ? 'limits' and not meta ? 'hold'
