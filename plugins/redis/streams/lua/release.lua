-- Acknowledge finished events and release the partition. Safe to repeat.
-- KEYS own log; ARGV group member epoch id…
--@include _now
--@include _mine
--@include _free
local own, log = KEYS[1], KEYS[2]
if not mine(own, ARGV[2], ARGV[3]) then
  return 0
end
for at = 4, #ARGV, 1000 do
  redis.call('XACK', log, ARGV[1], unpack(ARGV, at, math.min(at + 999, #ARGV)))
end
redis.call('HSET', own, 'until', 0)
redis.call('HDEL', own, 'owner')
return 1
