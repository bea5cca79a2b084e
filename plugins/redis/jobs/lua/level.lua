-- Recounts the job counters from the lists. The queues of scheduled and of running jobs are only in
-- their records: each of both is recounted while there are at most 128 of them, otherwise in a later
-- turn. 0 if one is left.
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

-- Recounts the jobs of a state from their ids; false if there are too many.
local function recount(letter, state, ids)
  local looked, found = 0, {}
  for at, id, text in each(ids) do
    looked = at
    local job = text and read(text, id)
    if job and job.state == state then
      found[letter .. job.queue] = (found[letter .. job.queue] or 0) + 1
    end
  end
  if looked < #ids then return false end
  for field in pairs(named) do
    if string.sub(field, 1, 2) == letter and not found[field] then put(field, 0) end
  end
  for field, count in pairs(found) do put(field, count) end
  return true
end

local all = 1
if redis.call('ZCARD', tag .. ':due') > MOST
  or not recount('s:', SCHEDULED, redis.call('ZRANGE', tag .. ':due', 0, -1))
then
  all = 0
end
local workers, number = redis.call('SMEMBERS', tag .. ':holders'), 0
for _, worker in ipairs(workers) do number = number + redis.call('SCARD', tag .. ':w:' .. worker) end
if number > MOST then return 0 end
local ids = {}
for _, worker in ipairs(workers) do
  for _, id in ipairs(redis.call('SMEMBERS', tag .. ':w:' .. worker)) do ids[#ids + 1] = id end
end
return recount('r:', RUNNING, ids) and all or 0
