-- Handle services whose lease has ended, at most so many of each kind. Atomic: if many workers
-- sweep, each service is found once. ARGV prefix most extra_ms keep_ms adopt_ms every_ms
-- every_ms: do nothing if a worker swept within this time; 0: sweep in any case
-- Returns {{id, new state}…, ids without a hash…, 1 if it did nothing for another sweep}
--@include _keys
--@include _free
local most, extra, keep = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local every, swept, place = tonumber(ARGV[6]), waiting .. ':swept', waiting .. ':place'
local found, ghosts = {}, {}
if every > 0 and not redis.call('SET', swept, 1, 'PX', every, 'NX') then
  return {found, ghosts, 1}
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now - extra, 'LIMIT', 0, most)) do
  local fields = redis.call('HMGET', prefix .. id, 'state', 'wanted')
  if fields[1] == 'RUNNING' then
    -- To the end of the queue: a service that kills its workers must not delay the others.
    table.insert(found, {id, settle(id, fields[2], 'LPUSH')})
  else
    redis.call('ZREM', leases, id)
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', cleaning, '-inf', now, 'LIMIT', 0, most)) do
  redis.call('ZREM', cleaning, id)
  redis.call('LPUSH', ended, id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', kept, '-inf', now - keep, 'LIMIT', 0, most)) do
  remove(id)
end
-- A service RUNNING without a lease was written by another program: grant a lease.
local page = redis.call('SSCAN', known, redis.call('GET', place) or '0', 'COUNT', most)
redis.call('SET', place, page[1])
for _, id in ipairs(page[2]) do
  local state = redis.call('HGET', prefix .. id, 'state')
  if state == 'RUNNING' and not redis.call('ZSCORE', leases, id) then
    redis.call('HDEL', prefix .. id, 'token', 'owner')
    redis.call('ZADD', leases, now + tonumber(ARGV[5]), id)
  elseif not state and redis.call('EXISTS', prefix .. id) == 0 then
    redis.call('SREM', known, id)
    table.insert(ghosts, id)
  end
end
return {found, ghosts, 0}
