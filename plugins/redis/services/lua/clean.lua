-- Forget what has ended, after its handler; not if it was begun anew or taken by another meanwhile.
-- ARGV prefix id times; 1 if it was forgotten.
--@include _keys
--@include _free
local id = ARGV[2]
local found = redis.call('HMGET', prefix .. id, 'state', 'cleanups')
if OVER[found[1]] and found[2] == ARGV[3] and redis.call('ZREM', cleaning, id) == 1 then
  remove(id)
  return 1
end
return 0
