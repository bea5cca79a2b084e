-- The jobs that a worker was asked to stop: ARGV worker.
--@include _record
return redis.call('SRANDMEMBER', tag .. ':stop:' .. ARGV[1], 1000)
