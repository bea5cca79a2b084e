-- Lists the unfinished jobs of a queue: ARGV queue, the limit for each kind. Returns the numbers of
-- kept jobs, of succeeded or cancelled ones, and of failed ones, for all queues; then waiting jobs in
-- the order in which they run, running ones, and scheduled ones by time: id and record of each.
--@include _record
local queue, most = ARGV[1], tonumber(ARGV[2])

local function shown(ids)
  local found = {}
  for at, text in ipairs(fetch(ids)) do
    local job = text and read(text, ids[at])
    if job and job.queue == queue then
      found[#found + 1], found[#found + 2] = ids[at], text
    end
  end
  return found
end

local function first(name)
  return most > 0 and redis.call('ZRANGE', name, 0, most - 1) or {}
end

local running = {}
for _, worker in ipairs(redis.call('SMEMBERS', tag .. ':holders')) do
  if #running >= most then break end
  for _, id in ipairs(redis.call('SRANDMEMBER', tag .. ':w:' .. worker, most - #running)) do
    running[#running + 1] = id
  end
end
return {
  redis.call('ZCARD', tag .. ':ids'),
  redis.call('ZCARD', tag .. ':done'),
  redis.call('ZCARD', tag .. ':dead'),
  shown(first(ready(queue))),
  shown(running),
  shown(first(tag .. ':due')),
}
