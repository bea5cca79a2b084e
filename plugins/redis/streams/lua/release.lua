-- Acknowledge finished events and release the partition. Safe to repeat.
-- KEYS own log; ARGV group member epoch id…
--@include _now
--@include _mine
--@include _free
--@include _ack
local own, log = KEYS[1], KEYS[2]
if not mine(own, ARGV[2], ARGV[3]) then
  return 0
end
ack(log, ARGV[1], ARGV, 4)
redis.call('HSET', own, 'until', 0)
redis.call('HDEL', own, 'owner')
return 1
