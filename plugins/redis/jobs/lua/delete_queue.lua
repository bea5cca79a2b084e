-- Deletes a queue; its jobs stay: ARGV name. Returns 0 if it does not exist.
--@include _record
local there = redis.call('HDEL', tag .. ':queues', ARGV[1])
redis.call('HDEL', tag .. ':rules', ARGV[1])
redis.call('HDEL', tag .. ':buckets', ARGV[1])
redis.call('HDEL', tag .. ':brief', ARGV[1])
redis.call('HDEL', tag .. ':paused', ARGV[1])
redis.call('HDEL', tag .. ':history', ARGV[1])
redis.call('DEL', tag .. ':idle:' .. ARGV[1])
if there == 1 then publish('q:') end
return there
