-- Queue a service for a worker, unless it runs. Safe to repeat: it is queued once.
-- ARGV prefix id name data cleanup; returns the new state, WAIT, or RUNNING if it runs.
--@include _keys
local id, name, data, cleanup = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if runs(id) then
  return 'RUNNING'
end
local key = prefix .. id
local queued = redis.call('EXISTS', key) == 1 and waits(id)
local was = redis.call('HGET', key, 'state')
-- First the write that a server without memory refuses.
redis.call('HSET', key, 'task', name, 'data', data, 'state', 'WAIT')
free(id, was)
redis.call('HDEL', key, 'local', 'cleanup')
if cleanup == 'false' then
  redis.call('HSET', key, 'cleanup', 'false')
end
redis.call('SREM', known, id)
if not queued then
  redis.call('LPUSH', waiting, id)
  nudge(id)
end
return 'WAIT'
