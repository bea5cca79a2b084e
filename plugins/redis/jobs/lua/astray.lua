-- By how many jobs the lists differ from the counters. Scripts change both together, so a difference
-- means that keys were deleted by hand. Returns three numbers: pending, scheduled, running.
--@include _record
local all, named = redis.call('HGETALL', tag .. ':n'), {p = 0, s = 0, r = 0}
local pending, seen = 0, {}
for at = 1, #all, 2 do
  local letter, queue, number = string.sub(all[at], 1, 1), string.sub(all[at], 3), tonumber(all[at + 1])
  named[letter] = named[letter] + number
  if letter == 'p' then
    seen[queue], pending = true, pending + math.abs(number - redis.call('ZCARD', ready(queue)))
  end
end
for _, queue in ipairs(redis.call('HKEYS', tag .. ':queues')) do
  if not seen[queue] then pending = pending + redis.call('ZCARD', ready(queue)) end
end
local held = 0
for _, worker in ipairs(redis.call('SMEMBERS', tag .. ':holders')) do
  held = held + redis.call('SCARD', tag .. ':w:' .. worker)
end
return {pending, math.abs(named.s - redis.call('ZCARD', tag .. ':due')), math.abs(named.r - held)}
