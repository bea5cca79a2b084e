-- Stores one unscheduled job without a unique key: ARGV id, priority, most attempts, queue, the REST
-- of a record. A reduced version of `push`. Returns 0 if the id exists already: `push` handles that
-- case.
local tag = KEYS[1]
local id, queue, rest = ARGV[1], ARGV[4], ARGV[5]
local stamp = redis.call('TIME')
local now = tonumber(stamp[1]) + tonumber(stamp[2]) / 1000000
local priority = tonumber(ARGV[2])
local position = redis.call('INCR', tag .. ':position')
local numbers = struct.pack('>bIdddd', priority, tonumber(ARGV[3]), position, 0 / 0, now, 0) .. rest
if not redis.call('SET', tag .. ':j:' .. id, '\1' .. string.rep('\0', 58) .. numbers, 'NX') then return 0 end
redis.call('ZADD', tag .. ':ids', 0, id)

-- The same as `score`.
redis.call('ZADD', tag .. ':r:' .. queue, (100 - priority) * 35184372088832 + position, id)
redis.call('HINCRBY', tag .. ':n', 'p:' .. queue, 1)
--@include _wake
wake(queue, 1, 'w')
return 1
