-- Replaces the meta of a running job with one merged object: ARGV id, lease, the old meta, the merged
-- one. Does nothing if the lease or the meta has changed since.
--@include _record
--@include _free
local text = load(ARGV[1])
local job = text and read(text, ARGV[1])
if not job or job.lease ~= ARGV[2] or job.state ~= RUNNING then return 0 end
local meta, errors, result = tails(job)
if meta ~= ARGV[3] then return 0 end
redis.call('SET', key(ARGV[1]), rewritten(job, ARGV[4], errors, result))
return 1
