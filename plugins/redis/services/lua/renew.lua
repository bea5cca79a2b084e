-- Extend leases. Safe to repeat. ARGV prefix lease_ms, then id and token of each
-- Returns for each 'lost', or the requested action: stop, reload, restart, remove, or ''.
--@include _keys
--@include _free
local lease_ms = tonumber(ARGV[2])
local found = {}
for at = 3, #ARGV, 2 do
  local id, token = ARGV[at], ARGV[at + 1]
  if owns(id, token) then
    redis.call('ZADD', leases, now + lease_ms, id)
    redis.call('HSET', prefix .. id, 'last_update', time[1])
    table.insert(found, redis.call('HGET', prefix .. id, 'wanted') or '')
  else
    table.insert(found, 'lost')
  end
end
return found
