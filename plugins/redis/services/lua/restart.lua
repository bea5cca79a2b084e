-- Let a service run again, by whoever is free. Safe to repeat. ARGV prefix id, then the states in
-- which it may; any if there are none. {whether it will, the state it had}; nothing if it is not
-- there, or was for a worker that runs it no more. One that runs is stopped by its owner first.
--@include _keys
local id = ARGV[2]
local key = prefix .. id
if redis.call('EXISTS', key) == 0 or (is_local(id) and not runs(id)) then
  return false
end
local state = redis.call('HGET', key, 'state') or 'WAIT'
local may = #ARGV == 2
for at = 3, #ARGV do
  may = may or ARGV[at] == state
end
if not may then
  return {0, state}
end
if runs(id) then
  redis.call('HSET', key, 'wanted', 'restart')
  nudge(id)
elseif waits(id) then
  redis.call('HDEL', key, 'wanted')
else
  free(id, state)
  wait(id)
end
return {1, state}
