-- Report the progress of a processor in a partition. Writes nothing.
-- KEYS log own park dead stat; ARGV group most
-- {length, lag, 1 if the lag may be larger, pending, first pending id, idle ms of the first pending
--  one, owner, ms left, epoch, parked at, parked id, parked error, dead letters, dropped, lost,
--  letters dropped, halted error, fenced}
--@include _now
--@include _few
--@include _groups
local MOST_BYTES = 1048576
local log, own, park, dead, stat = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, most = ARGV[1], tonumber(ARGV[2])
local length, lag, capped, pending, first, idle = redis.call('XLEN', log), -1, false, 0, false, 0
local found = groups(log)[group]
if found then
  lag = found['lag']
  if #redis.call('XRANGE', log, '-', found['last-delivered-id'], 'COUNT', 1) == 0 then
    lag = length
  elseif not lag or redis.call('HEXISTS', stat, 'dropped') == 1 then
    -- Before Redis 7, or where it cannot compute the lag: count up to the limits. Redis 7.0 also
    -- reports unread entries that were dropped, for ever.
    local entries
    entries, capped = few(most, MOST_BYTES, 16, function(step, last)
      return redis.call(
        'XRANGE', log, '(' .. (last or found['last-delivered-id']), '+', 'COUNT', step)
    end)
    lag = #entries
  end
  pending = found['pending']
  if pending > 0 then
    local entry = redis.call('XPENDING', log, group, '-', '+', 1)[1]
    if entry then
      first, idle = entry[1], entry[3]
    end
  end
end
local held = redis.call('HMGET', own, 'owner', 'until', 'epoch', 'halted')
local parked = redis.call('HMGET', park, 'at', 'xid', 'error')
local left = held[1] and math.max(0, tonumber(held[2] or 0) - now_ms()) or 0
local counts = redis.call(
  'HMGET', stat, 'dropped', 'lost:' .. group, 'letters_dropped:' .. group, 'fenced:' .. group)
return {length, lag, capped and 1 or 0, pending, first, idle, held[1], left, held[3],
  parked[1], parked[2], parked[3], redis.call('XLEN', dead), counts[1], counts[2], counts[3],
  left > 0 and held[4], counts[4]}
