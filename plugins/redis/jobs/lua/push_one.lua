-- Stores one unscheduled job without a unique key: ARGV id, priority, most attempts, queue, the REST
-- of a record. A reduced version of `push`. Hands the job to a worker that waits for the queue and
-- has no other jobs. Returns 0 if the id exists already: `push` handles that case.
local tag = KEYS[1]
local id, queue, rest = ARGV[1], ARGV[4], ARGV[5]
local stamp = redis.call('TIME')
local now = tonumber(stamp[1]) + tonumber(stamp[2]) / 1000000
local MOST_GIVEN = 65536
local parked, ready = tag .. ':parked:' .. queue, tag .. ':r:' .. queue
local priority = tonumber(ARGV[2])
local position = redis.call('INCR', tag .. ':position')
local numbers = struct.pack('>bIdddd', priority, tonumber(ARGV[3]), position, 0 / 0, now, 0) .. rest
if not redis.call('SET', tag .. ':j:' .. id, string.rep('\0', 58) .. numbers, 'NX') then return 0 end
redis.call('ZADD', tag .. ':ids', 0, id)

-- Only the first job of the queue, and only to a worker without claimed jobs: behind a long job it
-- would wait although other workers are free.
local function give()
  if #rest > MOST_GIVEN or redis.call('EXISTS', ready) == 1 then return false end
  local paused = redis.call('HGET', tag .. ':paused', queue)
  if paused and tonumber(paused) > now then return false end
  for _, member in ipairs(redis.call('ZRANGE', parked, 0, 3)) do
    local worker, desk = string.sub(member, 1, 16), string.sub(member, 17)
    local held = tag .. ':w:' .. worker
    if redis.call('EXISTS', held) == 0 then
      redis.call('ZREM', parked, member)
      local channel = tag .. ':desk:' .. desk
      -- Checked before publishing: without a local subscriber the message could still arrive through
      -- a replica or another node, and would be taken for a claim.
      if redis.call('ZSCORE', tag .. ':beats', worker)
        and redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0
      then
        local lease = struct.pack('>d', now) .. string.sub(desk, 1, 8)
        local text = struct.pack('>BBIIddc16c16', 1, 0, 1, 0, now, 0, worker, lease) .. numbers
        redis.call('SET', tag .. ':j:' .. id, text)
        redis.call('SADD', held, id)
        redis.call('SADD', tag .. ':holders', worker)
        -- Until the worker confirms the job.
        redis.call('SADD', tag .. ':given:' .. worker .. queue, lease .. id)
        redis.call('EXPIRE', tag .. ':given:' .. worker .. queue, 86400)
        redis.call('HINCRBY', tag .. ':n', 'r:' .. queue, 1)
        redis.call('PUBLISH', channel, worker .. id .. text)
        return true
      end
    end
  end
  return false
end

if redis.call('EXISTS', parked) == 1 and give() then return 1 end
-- The same as `score`.
redis.call('ZADD', ready, (100 - priority) * 35184372088832 + position, id)
redis.call('HINCRBY', tag .. ':n', 'p:' .. queue, 1)
if redis.call('SET', tag .. ':told:' .. queue, '', 'NX', 'PX', 1000) then
  redis.call('PUBLISH', tag .. ':notices', 'w:' .. queue)
end
return 1
