-- Claim a tick of a crontab for a worker. Safe to repeat.
-- KEYS tick; ARGV worker ms for which the claim is remembered
-- Returns 1 if it is claimed for this worker | 0
local tick, worker = KEYS[1], ARGV[1]
local claimed = redis.call('GET', tick)
if not claimed then
  -- Deletes nothing, but a server that is out of memory does not refuse the next write.
  redis.call('DEL', tick)
  redis.call('SET', tick, worker, 'PX', ARGV[2])
  return 1
end
return claimed == worker and 1 or 0
