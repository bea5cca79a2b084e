-- Claims pending jobs: ARGV queue, worker, lease, limit, the address of the process. Returns whether
-- there may be more jobs (1 or 0), a list of functions of jobs that were set aside, and then id and
-- record before the claim of each job, in the order in which they run.
--@include _record
--@include _free
--@include _take
--@include _rules
--@include _wake
local queue, worker, lease = ARGV[1], ARGV[2], ARGV[3]
local rules = rules_of(queue)
local wanted = tonumber(ARGV[4])
local limit = room_of(rules, wanted)
local MOST_ASIDE = 500
local found = {0, {}}
if not redis.call('ZSCORE', tag .. ':beats', worker) then return found end
local paused = redis.call('HGET', tag .. ':paused', queue)
if paused and tonumber(paused) > now then return found end
-- Random ones, so that repeated calls return all if there are more.
found[2] = redis.call('SRANDMEMBER', asides(queue), MOST_ASIDE)
local idle, member = tag .. ':idle:' .. queue, ARGV[5] .. worker
-- Lists the worker as idle. Each call also checks a random idle worker, so that dead ones are removed
-- over time.
local function rest()
  redis.call('SADD', idle, member)
  local other = redis.call('SRANDMEMBER', idle)
  if not redis.call('ZSCORE', tag .. ':beats', string.sub(other, 17)) then
    redis.call('SREM', idle, other)
  end
  return found
end
local popped = limit > 0 and redis.call('ZPOPMIN', ready(queue), limit) or {}
if #popped == 0 then return rest() end
local gone, taken = take(found, popped, ready(queue), PENDING, worker, lease)
if limit == wanted and #popped == 2 * limit or 2 * gone < #popped then found[1] = 1 end
spend_tokens(rules, taken)
count(PENDING, queue, -gone)
count(RUNNING, queue, taken)
write_counts()
if found[1] == 0 then return rest() end
redis.call('SREM', idle, member)
-- The worker is full, and there may be jobs for others.
if taken == wanted then wake_idle(queue, math.min(2, redis.call('ZCARD', ready(queue))), 'w') end
return found
