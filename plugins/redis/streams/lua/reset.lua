-- Restart a processor on a partition at an id, unless a member owns it. Pending entries are
-- discarded; a quarantine is lifted. Safe to repeat.
-- KEYS log own park; ARGV group start
-- {1, events that were pending} | {0}
--@include _now
--@include _groups
local log, own, park, group, start = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local held = redis.call('HMGET', own, 'owner', 'until')
if held[1] and tonumber(held[2] or 0) > now_ms() then
  return {0}
end
local pending, state = 0, groups(log)[group]
if state then
  pending = state['pending']
  redis.call('XGROUP', 'DESTROY', log, group)
end
redis.call('XGROUP', 'CREATE', log, group, start, 'MKSTREAM')
redis.call('DEL', park)
return {1, pending}
