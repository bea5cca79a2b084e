-- Renews the leases of a worker: ARGV worker. Returns 0 if it was declared dead.
--@include _record
--@include _free
if not redis.call('ZSCORE', tag .. ':beats', ARGV[1]) then return 0 end
redis.call('ZADD', tag .. ':beats', now, ARGV[1])
return 1
