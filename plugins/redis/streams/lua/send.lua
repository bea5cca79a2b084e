-- Append events to a log: all of them, or none if there is no room. Not safe to repeat.
-- To make room, entries that every group has acknowledged are removed first; then the oldest, if
-- they may be dropped, and these are counted.
-- KEYS log stat
-- ARGV size full ('block' | 'drop_oldest') answer ('ids' | 'count') given ('1': each has an id),
--      then for each run of equal ones: width (fields of an event, names and values), events, and
--      for each event: id if given, fields…
-- Returns ids or their number | false: no room
--@include _groups
--@include _trim
local log, stat = KEYS[1], KEYS[2]
local size, answer, given = tonumber(ARGV[1]), ARGV[3], ARGV[4] == '1'
local count, at = 0, 5
while at <= #ARGV do
  local width, events = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  count = count + events
  at = at + 2 + events * (width + (given and 1 or 0))
end

local function least(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

if given and redis.call('EXISTS', log) == 1 then
  -- Before anything is written: a script that fails does not undo its writes.
  local info = redis.call('XINFO', 'STREAM', log)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then
      local ms, seq = least(info[at + 1])
      local first_ms, first_seq = least(ARGV[7])
      if first_ms < ms or (first_ms == ms and first_seq <= seq) then
        return redis.error_reply('STALEID the log is at ' .. info[at + 1])
      end
    end
  end
end

if not make_room(log, stat, count, size, ARGV[2]) then
  return false
end

local ids, number = {}, 0
at = 5
while at <= #ARGV do
  local width, events = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  for _ = 1, events do
    local id = '*'
    if given then
      id = ARGV[at]
      at = at + 1
    end
    number = number + 1
    if width == 2 then
      ids[number] = redis.call('XADD', log, id, ARGV[at], ARGV[at + 1])
    else
      ids[number] = redis.call('XADD', log, id, unpack(ARGV, at, at + width - 1))
    end
    at = at + width
  end
end
if answer == 'ids' then
  return ids
end
return count
