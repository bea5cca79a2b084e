-- Run a service again, in any worker; if it runs, its owner stops it first. Safe to repeat.
-- ARGV prefix id, then the states from which it may restart; any state if there are none.
-- Returns {whether it restarts, the previous state}; nil if there is no such service, or it was
-- local to a worker that no longer runs it.
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
--@include _free
  redis.call('HSET', key, 'wanted', 'restart')
  nudge(id)
elseif waits(id) then
  redis.call('HDEL', key, 'wanted')
else
  free(id, state)
  wait(id)
end
return {1, state}
