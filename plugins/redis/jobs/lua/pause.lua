-- Pauses or resumes a queue: ARGV name, end of the pause ('' resumes). 0 if there is none.
--@include _record
--@include _free
if redis.call('HEXISTS', tag .. ':queues', ARGV[1]) == 0 then return 0 end
if ARGV[2] == '' then redis.call('HDEL', tag .. ':paused', ARGV[1])
else redis.call('HSET', tag .. ':paused', ARGV[1], ARGV[2]) end
publish('q:')
return 1
