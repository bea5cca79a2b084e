-- Take, extend or release the leadership. Safe to repeat.
-- KEYS lead; ARGV member lease_ms (0: release)
-- Returns the term if this member leads | 0
--@include _now
--@include _free
local lead, member, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
local found = redis.call('HMGET', lead, 'member', 'until')
local now = now_ms()
local held = found[1] and tonumber(found[2]) > now
if lease_ms == 0 then
  if found[1] == member then
    redis.call('HSET', lead, 'until', 0)
  end
  return 0
end
if held and found[1] ~= member then
  return 0
end
if not held then
  redis.call('HINCRBY', lead, 'term', 1)
end
redis.call('HSET', lead, 'member', member, 'until', now + lease_ms)
return redis.call('HGET', lead, 'term') + 0
