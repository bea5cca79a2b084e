-- Say that the owner of a partition has halted it, or goes on. Only for people: nothing is decided
-- by it, and the next owner forgets it. Safe to repeat.
-- KEYS own; ARGV member epoch error ('': it goes on)
--@include _now
--@include _mine
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
