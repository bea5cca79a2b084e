-- Recounts the job counters from the lists. The queues of scheduled and of running jobs are only in
-- their records: each of both is recounted while there are at most 128 of them, otherwise in a later
-- turn.
--@include _record
--@include _free
local MOST = 128
local known, named = redis.call('HGETALL', tag .. ':n'), {}
local queues = redis.call('HKEYS', tag .. ':queues')
for at = 1, #known, 2 do
  named[known[at]] = true
  if string.sub(known[at], 1, 2) == 'p:' then queues[#queues + 1] = string.sub(known[at], 3) end
end

local function put(field, number)
  if number == 0 then redis.call('HDEL', tag .. ':n', field)
  else redis.call('HSET', tag .. ':n', field, number) end
end
for _, queue in ipairs(queues) do put('p:' .. queue, redis.call('ZCARD', ready(queue))) end

-- Recounts the jobs of a state from their ids.
local function recount(letter, state, ids)
  local found = {}
  for _, id in ipairs(ids) do
    local text = head_of(id)
    local job = text and read(text, id, redis.call('STRLEN', key(id)))
    if job and job.state == state then
      found[letter .. job.queue] = (found[letter .. job.queue] or 0) + 1
    end
  end
  for field in pairs(named) do
    if string.sub(field, 1, 2) == letter and not found[field] then put(field, 0) end
  end
  for field, count in pairs(found) do put(field, count) end
end

if redis.call('ZCARD', tag .. ':due') <= MOST then
  recount('s:', SCHEDULED, redis.call('ZRANGE', tag .. ':due', 0, -1))
end
local workers, number = redis.call('SMEMBERS', tag .. ':holders'), 0
for _, worker in ipairs(workers) do number = number + redis.call('SCARD', tag .. ':w:' .. worker) end
if number > MOST then return end
local ids = {}
for _, worker in ipairs(workers) do
  for _, id in ipairs(redis.call('SMEMBERS', tag .. ':w:' .. worker)) do ids[#ids + 1] = id end
end
recount('r:', RUNNING, ids)
