-- Record that a service ended by itself. ARGV prefix id token state output event
-- Returns 1, or 0 without any change if the lease is lost, as it is when this is repeated.
--@include _keys
--@include _free
local id, token, state = ARGV[2], ARGV[3], ARGV[4]
if not owns(id, token) then
  return 0
end
local key = prefix .. id
local wanted = redis.call('HGET', key, 'wanted')
free(id)
redis.call('HSET', key, 'state', state, 'output', ARGV[5], 'last_update', time[1])
redis.pcall('PUBLISH', key, ARGV[6])
if wanted == 'remove' then
  remove(id)
elseif wanted == 'restart' and not is_local(id) then
  wait(id)
elseif redis.call('HGET', key, 'cleanup') == 'false' then
  redis.call('ZADD', kept, now, id)
else
  redis.call('SREM', known, id)
  redis.call('LPUSH', ended, id)
end
return 1
