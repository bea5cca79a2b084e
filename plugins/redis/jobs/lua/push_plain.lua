-- Stores unscheduled jobs of one queue, priority and most attempts without unique keys, all or none:
-- ARGV queue, priority, most attempts, then id and the REST of a record for each. A reduced version
-- of `push` that takes 4 µs per job instead of 12: 1,000 jobs may take 5 ms.
-- Returns 0 and stores nothing if one of the ids exists already or occurs twice: `push` handles that.
local tag = KEYS[1]
local queue, priority = ARGV[1], tonumber(ARGV[2])
local stamp = redis.call('TIME')
local now = tonumber(stamp[1]) + tonumber(stamp[2]) / 1000000
local count = (#ARGV - 3) / 2
local position = redis.call('INCRBY', tag .. ':position', count) - count
local head = '\1' .. string.rep('\0', 58) .. struct.pack('>bI', priority, tonumber(ARGV[3]))
-- The same as `score`.
local score, prefix, never = (100 - priority) * 35184372088832 + position, tag .. ':j:', 0 / 0
local written, members, ids, seen, pack = {}, {}, {}, {}, struct.pack
for at = 1, count do
  local even = 2 * at
  local odd, id = even - 1, ARGV[even + 2]
  if seen[id] then return 0 end
  seen[id] = true
  written[odd] = prefix .. id
  written[even] = head .. pack('>dddd', position + at, never, now, 0) .. ARGV[even + 3]
  members[odd], members[even] = score + at, id
  ids[odd], ids[even] = 0, id
end
if redis.call('MSETNX', unpack(written)) == 0 then return 0 end
redis.call('ZADD', tag .. ':r:' .. queue, unpack(members))
redis.call('ZADD', tag .. ':ids', unpack(ids))
redis.call('HINCRBY', tag .. ':n', 'p:' .. queue, count)
--@include _wake
wake(queue, count, 'w')
return 1
