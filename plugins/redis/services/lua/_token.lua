-- Return a token above all earlier ones, even after a loss of all data: the time in microseconds.
local function next_token()
  local last = tonumber(redis.call('GET', waiting .. ':token') or '0')
  local made = math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  local text = string.format('%.0f', made)
  redis.call('SET', waiting .. ':token', text)
  return text
end

-- Grant the lease to a worker. An older request in 'wanted' does not apply to this run.
local function give(id, owner, lease_ms)
  local token = next_token()
  redis.call('HDEL', prefix .. id, 'output', 'wanted', 'cleanups')
  redis.call(
    'HSET', prefix .. id, 'state', 'RUNNING', 'last_update', time[1], 'token', token, 'owner', owner)
  redis.call('ZADD', leases, now + lease_ms, id)
  redis.call('SADD', known, id)
  redis.pcall('PUBLISH', prefix .. id, '{"event":"start","data":null}')
  return token
end
