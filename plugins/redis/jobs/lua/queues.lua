-- All queues: the clock, then name, settings and pause of each.
--@include _record
local found = {string.format('%.6f', now)}
local all = redis.call('HGETALL', tag .. ':queues')
for at = 1, #all, 2 do
  local n = #found
  found[n + 1], found[n + 2] = all[at], all[at + 1]
  found[n + 3] = redis.call('HGET', tag .. ':paused', all[at]) or ''
end
return found
