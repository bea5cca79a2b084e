-- Arguments of every script here: KEYS waiting ended known; ARGV[1] prefix of the hashes.
-- The other keys start with the first one. All keys share a cluster slot.
local waiting, ended, known, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local leases, control = waiting .. ':leases', waiting .. ':control'
local cleaning, kept = waiting .. ':cleaning', waiting .. ':kept'
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Events are sent by pcall: what a script has written remains if the channel is refused.
local OVER = {SUCCESS = true, ERROR = true, EXCEPTION = true}

-- Whether a worker has a valid lease of the service.
local function runs(id)
  local till = redis.call('ZSCORE', leases, id)
  return till and tonumber(till) > now and redis.call('HGET', prefix .. id, 'state') == 'RUNNING'
end

-- Whether this token is the current one.
local function owns(id, token)
  local found = redis.call('HMGET', prefix .. id, 'state', 'token')
  return found[1] == 'RUNNING' and found[2] == token
end

-- Whether the service belongs to one worker only.
local function is_local(id)
  return redis.call('HGET', prefix .. id, 'local') == 'true'
end

-- Remove owner, token and outcome. Without a token in the hash, no old token matches.
local function free(id, state)
  redis.call('ZREM', leases, id)
  redis.call('HDEL', prefix .. id, 'token', 'owner', 'wanted')
  if OVER[state] then
    redis.call('LREM', ended, 0, id)
    redis.call('ZREM', cleaning, id)
    redis.call('ZREM', kept, id)
    redis.call('HDEL', prefix .. id, 'output', 'cleanups')
  end
end

local function stopped(id)
  free(id)
  redis.call('HSET', prefix .. id, 'state', 'STOPPED')
  redis.call('SADD', known, id)
  redis.pcall('PUBLISH', prefix .. id, '{"event":"stop","data":null}')
end

-- Remove the service. Does not remove it from the list of ended services, which would read all of
-- that list.
local function remove(id)
  redis.call('ZREM', leases, id)
  redis.call('ZREM', cleaning, id)
  redis.call('ZREM', kept, id)
  redis.call('DEL', prefix .. id)
  redis.call('SREM', known, id)
end

-- Notify the workers now of a request for a service, or that it is queued.
local function nudge(id)
  redis.call('XADD', control, 'MAXLEN', '~', 1000, '*', 'id', id)
end

-- Queue the service for a worker: at the end of the queue, or at its front.
local function wait(id, side)
  free(id)
  redis.call('HSET', prefix .. id, 'state', 'WAIT')
  redis.call('SREM', known, id)
  redis.call(side or 'LPUSH', waiting, id)
  nudge(id)
end

-- Whether the service is queued. Reads the whole queue: for commands only.
local function waits(id)
  return redis.call('LPOS', waiting, id)
end

-- Carry out the last request for a service that no longer runs; queue it if there is none.
local function settle(id, wanted, side)
  if wanted == 'remove' or is_local(id) then
    remove(id)
    return 'removed'
  elseif wanted == 'stop' then
    stopped(id)
    return 'STOPPED'
  end
  wait(id, side)
  return 'WAIT'
end
