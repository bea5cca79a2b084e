-- Remove a processor from a partition: its group and its stored state. Safe to repeat.
-- KEYS log own park dead stat; ARGV group
-- {1 if there was anything, events that were pending, dead letters}
--@include _groups
local log, own, park, dead, stat = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group = ARGV[1]
local found, pending, state = 0, 0, groups(log)[group]
if state then
  found, pending = redis.call('XGROUP', 'DESTROY', log, group), state['pending']
end
local letters = redis.call('XLEN', dead)
found = found + redis.call('DEL', own, park, dead)
redis.call('HDEL', stat, 'lost:' .. group, 'letters_dropped:' .. group, 'fenced:' .. group)
return {found > 0 and 1 or 0, pending, letters}
