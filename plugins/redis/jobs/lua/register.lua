-- Registers a worker and its first heartbeat: ARGV worker, its record as JSON.
--@include _record
--@include _free
redis.call('HSETNX', tag .. ':workers', ARGV[1], string.format('%.6f', now) .. ' ' .. ARGV[2])
redis.call('ZADD', tag .. ':beats', now, ARGV[1])
return 1
