-- Acknowledge and read in one step, if the partition is still owned. Safe to repeat with a cursor:
-- entries of a lost reply are pending, and are read after the cursor. A request that arrives behind
-- a later one reads nothing: its reply is not awaited any more, so its entries would stay pending.
-- KEYS own log stat; ARGV group member epoch count cursor number most-bytes id…
-- cursor: '>' for new entries, or the id after which pending entries are read
-- number: rises with each exchange of the epoch
-- {'lost'} | {'ok', entries, ids of entries that are gone, 1 if there may be more to read}
--@include _now
--@include _mine
--@include _free
--@include _ack
--@include _few
local own, log, stat = KEYS[1], KEYS[2], KEYS[3]
local group, member, epoch = ARGV[1], ARGV[2], ARGV[3]
local count, cursor = tonumber(ARGV[4]), ARGV[5]
if not mine(own, member, epoch) then
  redis.call('HINCRBY', stat, 'fenced:' .. group, 1)
  return {'lost'}
end
ack(log, group, ARGV, 8)
if count == 0 or tonumber(ARGV[6]) <= tonumber(redis.call('HGET', own, 'exchange') or 0) then
  return {'ok', {}, {}, 0}
end
redis.call('HSET', own, 'exchange', ARGV[6])
local entries, more = few(count, tonumber(ARGV[7]), 32, function(step, last)
  local read = redis.call(
    'XREADGROUP', 'GROUP', group, 'e' .. epoch, 'COUNT', step, 'STREAMS', log,
    cursor == '>' and cursor or last or cursor)
  return read and read[1][2] or {}
end)
more = more and 1 or 0
if cursor == '>' then
  return {'ok', entries, {}, more}
end
-- Pending entries may have been dropped from the log: acknowledge and count them.
local kept, gone = {}, {}
for _, entry in ipairs(entries) do
  if entry[2] then
    kept[#kept + 1] = entry
  else
    gone[#gone + 1] = entry[1]
  end
end
ack(log, group, gone, 1)
if #gone > 0 then
  redis.call('HINCRBY', stat, 'lost:' .. group, #gone)
end
return {'ok', kept, gone, more}
