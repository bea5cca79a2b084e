-- Record that the owner of a partition has halted or resumed it. For inspection only: no decision
-- depends on it, and the next owner clears it. Safe to repeat.
-- KEYS own; ARGV member epoch error ('': resumed)
--@include _now
--@include _mine
--@include _free
local own = KEYS[1]
if not mine(own, ARGV[1], ARGV[2]) then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', own, 'halted')
else
  redis.call('HSET', own, 'halted', ARGV[3])
end
return 1
