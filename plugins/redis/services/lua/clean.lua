-- Remove an ended service after its handler, unless it was restarted or claimed by another worker.
-- ARGV prefix id times; returns 1 if it was removed.
--@include _keys
--@include _free
local id = ARGV[2]
local found = redis.call('HMGET', prefix .. id, 'state', 'cleanups')
if OVER[found[1]] and found[2] == ARGV[3] and redis.call('ZREM', cleaning, id) == 1 then
  remove(id)
  return 1
end
return 0
