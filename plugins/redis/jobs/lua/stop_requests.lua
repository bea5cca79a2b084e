-- The jobs that a worker should stop: ARGV worker.
--@include _record
return redis.call('SRANDMEMBER', tag .. ':stop:' .. ARGV[1], 1000)
