-- All workers: the clock, then for each its id, last heartbeat, record, and the queues it serves.
--@include _record
local found = {string.format('%.6f', now)}
local beats = redis.call('ZRANGE', tag .. ':beats', 0, -1, 'WITHSCORES')
for at = 1, #beats, 2 do
  local record = redis.call('HGET', tag .. ':workers', beats[at])
  if record then
    local n = #found
    found[n + 1], found[n + 2], found[n + 3] = beats[at], beats[at + 1], record
    found[n + 4] = redis.call('HGET', tag .. ':serves', beats[at]) or ''
  end
end
return found
