-- Make a service that is for one worker only, and give it to that one; not if it runs elsewhere.
-- One of ours has ended by now. ARGV prefix owner lease_ms id name data; the token, or nothing.
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
