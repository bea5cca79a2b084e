-- Change what is said of a worker: ARGV worker, what it serves as JSON. 0 if it is not there.
--@include _record
--@include _free
if not redis.call('ZSCORE', tag .. ':beats', ARGV[1]) then return 0 end
redis.call('HSET', tag .. ':serves', ARGV[1], ARGV[2])
return 1
