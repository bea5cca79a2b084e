-- Lift the quarantine of a partition and clear its halt. Safe to repeat.
-- KEYS park own
-- Returns {error} if it was parked or halted | false if it was neither
--@include _now
local park, own = KEYS[1], KEYS[2]
local found = redis.call('HGET', park, 'error')
local held = redis.call('HMGET', own, 'owner', 'until', 'halted')
local halted = held[1] and tonumber(held[2] or 0) > now_ms() and held[3]
local parked = redis.call('DEL', park) == 1
redis.call('HDEL', own, 'halted')
if parked then
  return {found or ''}
end
return halted and {halted}
