-- Extend the lease of a partition; one that has ended is lost. Safe to repeat.
-- KEYS own; ARGV member epoch lease_ms
--@include _now
--@include _mine
if not mine(KEYS[1], ARGV[1], ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[1], 'until', now_ms() + tonumber(ARGV[3]))
return 1
