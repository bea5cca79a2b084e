-- What there is of a queue, without a look at what has ended: ARGV queue, how many at most of each
-- kind. Gives how many are kept, have succeeded or were cancelled, and failed, of all queues; then
-- waiting jobs in the order in which they are to run, running ones, and scheduled ones by their
-- time: of each kind id and record, one after the other.
--@include _record
local queue, most = ARGV[1], tonumber(ARGV[2])

local function shown(ids)
  local found = {}
  for at, text in ipairs(fetch(ids)) do
    if text and read(text).queue == queue then
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
