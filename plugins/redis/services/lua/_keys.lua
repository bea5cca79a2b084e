-- What every script here is given: KEYS waiting ended known; ARGV[1] what the hashes begin with.
-- The other keys begin with the first one. All of them share a slot of a cluster.
local waiting, ended, known, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local leases, rung, control = waiting .. ':leases', waiting .. ':rung', waiting .. ':control'
local cleaning, kept = waiting .. ':cleaning', waiting .. ':kept'
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local OVER = {SUCCESS = true, ERROR = true, EXCEPTION = true}

-- Whether somebody runs it, as far as its lease tells.
local function runs(id)
  local till = redis.call('ZSCORE', leases, id)
  return till and tonumber(till) > now and redis.call('HGET', prefix .. id, 'state') == 'RUNNING'
end

-- Whether the lease of this token is the one that counts.
local function owns(id, token)
  local found = redis.call('HMGET', prefix .. id, 'state', 'token')
  return found[1] == 'RUNNING' and found[2] == token
end

-- Whether it is for one worker only, which alone may run it.
local function is_local(id)
  return redis.call('HGET', prefix .. id, 'local') == 'true'
end

-- Forget whose it was and where it had ended. A token that is gone fits nobody.
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
  redis.call('PUBLISH', prefix .. id, '{"event":"stop","data":null}')
end

-- Forget it. Not one that waits to be cleaned up after: its list is not looked through, of which
-- each removal would read all.
local function remove(id)
  redis.call('ZREM', leases, id)
  redis.call('ZREM', cleaning, id)
  redis.call('ZREM', kept, id)
  redis.call('DEL', prefix .. id)
  redis.call('SREM', known, id)
end

-- Let it wait for a worker: the last in the line, or the first.
local function wait(id, side)
  free(id)
  redis.call('HSET', prefix .. id, 'state', 'WAIT')
  redis.call('SREM', known, id)
  redis.call(side or 'LPUSH', waiting, id)
end

-- Whether it is in the line. Reads all of the line: only for what people ask.
local function waits(id)
  return redis.call('LPOS', waiting, id) or redis.call('LPOS', rung, id)
end

-- Tell the owner to look at what is wanted now, not only at its next renewal.
local function nudge(id)
  redis.call('XADD', control, 'MAXLEN', '~', 1000, '*', 'id', id)
end

-- Do with a service that nobody runs any more what was wanted meanwhile.
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
