-- Set the data if it is unchanged. ARGV prefix id old new; returns nil if there is no such service.
--@include _keys
local key = prefix .. ARGV[2]
if redis.call('EXISTS', key) == 0 then
  return false
end
if (redis.call('HGET', key, 'data') or '') ~= ARGV[3] then
  return 0
end
redis.call('HSET', key, 'data', ARGV[4])
return 1
