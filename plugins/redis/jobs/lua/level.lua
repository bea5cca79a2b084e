-- Recounts the job counters from the lists. The queues of scheduled and running jobs are only in
-- their records: these are recounted while there are at most 128 of them, otherwise in a later turn.
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

local workers = redis.call('SMEMBERS', tag .. ':holders')
local number = redis.call('ZCARD', tag .. ':due')
for _, worker in ipairs(workers) do number = number + redis.call('SCARD', tag .. ':w:' .. worker) end
if number > MOST then return 0 end
local ids = redis.call('ZRANGE', tag .. ':due', 0, -1)
for _, worker in ipairs(workers) do
  for _, id in ipairs(redis.call('SMEMBERS', tag .. ':w:' .. worker)) do ids[#ids + 1] = id end
end
local looked, found = 0, {}
for at, id, text in each(ids) do
  looked = at
  local job = text and read(text, id)
  local letter = job and (job.state == SCHEDULED and 's:' or job.state == RUNNING and 'r:')
  if letter then found[letter .. job.queue] = (found[letter .. job.queue] or 0) + 1 end
end
if looked < #ids then return 0 end
for field in pairs(named) do
  local letter = string.sub(field, 1, 1)
  if (letter == 's' or letter == 'r') and not found[field] then put(field, 0) end
end
for field, count in pairs(found) do put(field, count) end
return 1
