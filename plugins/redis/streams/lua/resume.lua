-- Lift the quarantine of a partition. Safe to repeat.
-- KEYS park
-- {at, id, error} of what was parked | false: it was not
local found = redis.call('HMGET', KEYS[1], 'at', 'xid', 'error')
if redis.call('DEL', KEYS[1]) == 0 then
  return false
end
return found
