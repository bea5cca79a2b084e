-- Claim ended services for their cleanup, oldest first. If a cleanup is not confirmed in time, a
-- sweep puts the service back. ARGV prefix lease_ms most drop; with drop 1, remove all at once.
-- Returns for each {id, number of claims, fields and values…}
--@include _keys
--@include _free
local lease_ms, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
for _ = 1, most do
  local id = redis.call('RPOP', ended)
  if not id then
    break
  end
  local state = redis.call('HGET', prefix .. id, 'state')
  if OVER[state] then
    if ARGV[4] == '1' then
      table.insert(found, {id, 0, {}})
      remove(id)
    else
      local times = redis.call('HINCRBY', prefix .. id, 'cleanups', 1)
      redis.call('ZADD', cleaning, now + lease_ms, id)
      table.insert(found, {id, times, redis.call('HGETALL', prefix .. id)})
    end
  end
end
return found
