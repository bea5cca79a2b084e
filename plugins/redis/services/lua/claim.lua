-- Claim queued services, oldest first: each leaves the queue and becomes RUNNING with a lease,
-- atomically. If the reply is lost, the lease ends and it is queued again.
-- ARGV prefix owner lease_ms most
-- For each id {id, 'run', token, name, data}, {id, 'missing'}, {id, 'running'}, or {id, 'stopped'}.
-- Stops after the service whose data exceeds 192 KiB in total.
--@include _keys
--@include _free
--@include _token
local owner, lease_ms, most = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local MOST_BYTES = 196608
local found, bytes = {}, 0
for _ = 1, most do
  if bytes > MOST_BYTES then
    break
  end
  local id = redis.call('RPOP', waiting)
  if not id then
    break
  end
  local key = prefix .. id
  local fields = redis.call('HMGET', key, 'task', 'data', 'state', 'wanted')
  -- A request for a service at rest came before this start, and met no run.
  local rests = fields[3] == 'STOPPED' or OVER[fields[3]]
  if not fields[1] then
    redis.call('SREM', known, id)
    table.insert(found, {id, 'missing'})
  elseif runs(id) then
    table.insert(found, {id, 'running'})
  elseif not rests and (fields[4] == 'stop' or fields[4] == 'remove') then
    settle(id, fields[4])
    table.insert(found, {id, 'stopped'})
  else
    if OVER[fields[3]] then
      free(id, fields[3])
    end
    redis.call('HDEL', key, 'local')
    bytes = bytes + #(fields[2] or '')
    table.insert(found, {id, 'run', give(id, owner, lease_ms), fields[1], fields[2] or ''})
  end
end
return found
