-- Renew the lease of a worker: ARGV worker, whether it is to be there again if it was not.
-- Gives 0 if it was declared dead, else 1; then the jobs that it was asked to stop.
--@include _record
local known = redis.call('ZSCORE', tag .. ':beats', ARGV[1])
if known or ARGV[2] == '1' then redis.call('ZADD', tag .. ':beats', now, ARGV[1]) end
return {known and 1 or 0, unpack(redis.call('SRANDMEMBER', tag .. ':stop:' .. ARGV[1], 1000))}
