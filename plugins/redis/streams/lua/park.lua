-- Park a partition for a processor and release it. The failed events stay pending.
-- KEYS own log park; ARGV group member epoch xid error ids-that-are-done…
--@include _now
--@include _mine
--@include _free
--@include _ack
local own, log, park = KEYS[1], KEYS[2], KEYS[3]
if not mine(own, ARGV[2], ARGV[3]) then
  return 0
end
ack(log, ARGV[1], ARGV, 6)
redis.call('HSET', park, 'xid', ARGV[4], 'error', ARGV[5], 'at', now_ms(), 'member', ARGV[2])
redis.call('HSET', own, 'until', 0)
redis.call('HDEL', own, 'owner')
return 1
