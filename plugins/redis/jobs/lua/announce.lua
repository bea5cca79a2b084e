-- Updates what a worker serves: ARGV worker, JSON. Returns 0 if the worker is not registered.
--@include _record
--@include _free
if not redis.call('ZSCORE', tag .. ':beats', ARGV[1]) then return 0 end
redis.call('HSET', tag .. ':serves', ARGV[1], ARGV[2])
return 1
