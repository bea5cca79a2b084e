-- Remove a processor from a partition: its group and its stored state. Safe to repeat.
-- KEYS log own park dead stat; ARGV group
-- {1 if there was anything, events that were pending, dead letters}
local log, own, park, dead, stat = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group = ARGV[1]
local found, pending = 0, 0
if redis.call('EXISTS', log) == 1 then
  for _, one in ipairs(redis.call('XINFO', 'GROUPS', log)) do
    if one[2] == group then
      pending = redis.call('XPENDING', log, group)[1]
    end
  end
  found = redis.call('XGROUP', 'DESTROY', log, group)
end
local letters = redis.call('XLEN', dead)
found = found + redis.call('DEL', own, park, dead)
redis.call('HDEL', stat, 'lost:' .. group, 'letters_dropped:' .. group, 'fenced:' .. group)
return {found > 0 and 1 or 0, pending, letters}
