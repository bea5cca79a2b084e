-- Extend the lease of a partition; returns 0 if it has ended. Safe to repeat.
-- KEYS own; ARGV member epoch lease_ms
--@include _now
--@include _mine
--@include _free
if not mine(KEYS[1], ARGV[1], ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[1], 'until', now_ms() + tonumber(ARGV[3]))
return 1
