-- Claims jobs of a queue that were set aside: ARGV queue, worker, lease, limit, then functions. Returns
-- id and record before the claim of each job.
--@include _record
--@include _free
--@include _take
--@include _rules
local queue, worker, lease = ARGV[1], ARGV[2], ARGV[3]
local rules = rules_of(queue)
local limit = room_of(rules, tonumber(ARGV[4]))
local found, popped = {}, 0
if not redis.call('ZSCORE', tag .. ':beats', worker) then return found end
local paused = redis.call('HGET', tag .. ':paused', queue)
if paused and tonumber(paused) > now then return found end
for at = 5, #ARGV do
  local name = aside(queue, ARGV[at])
  while popped < limit do
    local some = redis.call('ZPOPMIN', name, limit - popped)
    if #some == 0 then
      redis.call('SREM', asides(queue), ARGV[at])
      break
    end
    local gone, taken = take(found, some, name, HELD, worker, lease)
    popped = popped + gone
    spend_tokens(rules, taken)
    count(HELD, queue, -taken)
    count(RUNNING, queue, taken)
    if 2 * gone < #some then popped = limit end
  end
end
write_counts()
return found
