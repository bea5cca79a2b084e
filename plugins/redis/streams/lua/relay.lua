-- Append rows of the outbox to a log, each one whole and once, in order. Safe to repeat.
-- A row whose mark is stored was appended before. Marks below the first row belong to deleted rows
-- and are removed. A relay with an older term is refused.
-- KEYS log stat relayed
-- ARGV term size full ('block' | 'drop_oldest'), then for each row: pos, mark, width (fields of an
--      event, names and values), events, fields…
-- Returns {rows appended, 1 if there was no room for the next} | {'stale', stored term}
--@include _groups
--@include _trim
local log, stat, relayed = KEYS[1], KEYS[2], KEYS[3]
local term, size = tonumber(ARGV[1]), tonumber(ARGV[2])
local known = tonumber(redis.call('HGET', stat, 'term') or 0)
if term < known then
  return {'stale', known}
end
if term > known then
  redis.call('HSET', stat, 'term', term)
end
local rows, full, at = 0, 0, 4
while at <= #ARGV do
  local mark, width, count = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local first, after = at + 4, at + 4 + width * count
  if not redis.call('ZSCORE', relayed, mark) then
    -- A row may exceed the size of the stream if that was reduced since.
    if not make_room(log, stat, count, math.max(size, count), ARGV[3]) then
      full = 1
      break
    end
    for each = first, after - 1, width do
      redis.call('XADD', log, '*', unpack(ARGV, each, each + width - 1))
    end
    redis.call('ZADD', relayed, ARGV[at], mark)
  end
  rows, at = rows + 1, after
end
-- Last: after any write, a server that is out of memory no longer refuses the events.
redis.call('ZREMRANGEBYSCORE', relayed, '-inf', '(' .. ARGV[4])
return {rows, full}
