-- Park a partition for a processor and release it. The failed events stay pending.
-- KEYS own log park; ARGV group member epoch xid error ids-that-are-done…
--@include _now
--@include _mine
--@include _free
local own, log, park = KEYS[1], KEYS[2], KEYS[3]
if not mine(own, ARGV[2], ARGV[3]) then
  return 0
end
for at = 6, #ARGV, 1000 do
  redis.call('XACK', log, ARGV[1], unpack(ARGV, at, math.min(at + 999, #ARGV)))
end
redis.call('HSET', park, 'xid', ARGV[4], 'error', ARGV[5], 'at', now_ms(), 'member', ARGV[2])
redis.call('HSET', own, 'until', 0)
redis.call('HDEL', own, 'owner')
return 1
