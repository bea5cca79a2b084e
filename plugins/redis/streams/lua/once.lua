-- Tasks that a fleet runs once at its start. A fleet lasts from its first worker to its last; the
-- finished tasks are removed when no worker is alive. Safe to repeat.
-- KEYS workers done; ARGV action ('beat' | 'leave' | 'claim' | 'finish' | 'fail') worker alive_ms name
-- 'claim' returns 1 if the worker must run it, 0 if another worker runs it, 2 if it is done
--@include _now
local workers, done = KEYS[1], KEYS[2]
local action, worker, alive_ms, name = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', workers, '-inf', now)
if redis.call('EXISTS', workers) == 0 then
  redis.call('DEL', done)
end
if action == 'leave' then
  redis.call('ZREM', workers, worker)
  if redis.call('EXISTS', workers) == 0 then
    redis.call('DEL', done)
  end
  return 1
end
redis.call('ZADD', workers, now + alive_ms, worker)
if action == 'claim' then
  local by = redis.call('HGET', done, name)
  if by == 'done' then
    return 2
  end
  if by and by ~= worker and redis.call('ZSCORE', workers, by) then
    return 0
  end
  redis.call('HSET', done, name, worker)
  return 1
end
if redis.call('HGET', done, name) == worker then
  if action == 'finish' then
    redis.call('HSET', done, name, 'done')
  elseif action == 'fail' then
    redis.call('HDEL', done, name)
  end
end
return 1
