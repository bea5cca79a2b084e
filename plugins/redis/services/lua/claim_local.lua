-- Create a service for one worker only and grant its lease, unless another worker runs the id. An
-- earlier instance of this worker has ended by now.
-- ARGV prefix owner lease_ms id name data; returns the token, or nil.
--@include _keys
--@include _token
local owner, lease_ms, id = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local key = prefix .. id
if runs(id) and redis.call('HGET', key, 'owner') ~= owner then
  return false
end
free(id, redis.call('HGET', key, 'state'))
redis.call('HSET', key, 'task', ARGV[5], 'data', ARGV[6], 'local', 'true')
return give(id, owner, lease_ms)
