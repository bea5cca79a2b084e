-- Removes a worker; the jobs that it runs are orphaned: ARGV worker.
--@include _record
--@include _free
redis.call('ZREM', tag .. ':beats', ARGV[1])
redis.call('HDEL', tag .. ':workers', ARGV[1])
redis.call('HDEL', tag .. ':serves', ARGV[1])
return 1
