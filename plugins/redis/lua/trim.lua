-- Forget finished jobs that are over their age: ARGV the name, seconds, how many at most.
-- Gives how many there were.
--@include _record
--@include _free
--@include _retire
local ids = redis.call('ZRANGEBYSCORE', tag .. ARGV[1], '-inf', now - ARGV[2], 'LIMIT', 0, ARGV[3])
if #ids > 0 then
  redis.call('ZREM', tag .. ARGV[1], unpack(ids))
  drop(ids)
end
return #ids
