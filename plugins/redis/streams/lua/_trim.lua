-- Remove the oldest entries before a floor, up to a number. Whole nodes were removed before, so that
-- these entries are in one node: up to 4 KB, or a single larger entry.
local function trim_node(log, floor, most)
  local count = #redis.call('XRANGE', log, '-', '(' .. floor, 'COUNT', most)
  if count == 0 then
    return 0
  end
  return redis.call('XTRIM', log, 'MAXLEN', redis.call('XLEN', log) - count)
end

-- Trim a log towards a size without dropping entries that a group has not acknowledged. Returns the
-- number of removed entries and the id of the first that must stay. A log without a group is not
-- trimmed.
local function trim(log, size)
  local excess = redis.call('XLEN', log) - size
  if excess <= 0 then
    return 0
  end
  -- The first entry that must stay: the lowest of all groups' first pending or unread entries.
  local function parts(id)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    return tonumber(ms), tonumber(seq)
  end
  local function before(one, other)
    local a, b = parts(one)
    local c, d = parts(other)
    return a < c or (a == c and b < d)
  end
  local floor
  for name, fields in pairs(groups(log)) do
    local first
    if fields['pending'] > 0 then
      first = redis.call('XPENDING', log, name)[2]
    else
      local ms, seq = parts(fields['last-delivered-id'])
      first = string.format('%.0f-%.0f', ms, seq + 1)
    end
    if not floor or before(first, floor) then
      floor = first
    end
  end
  if not floor then
    return 0
  end
  -- Whole nodes of up to 100 entries. Removing single entries would rewrite a node each time, so
  -- they are not removed from long logs.
  local gone = redis.call('XTRIM', log, 'MINID', '~', floor, 'LIMIT', excess)
  if excess < 200 and gone < excess then
    gone = gone + trim_node(log, floor, excess - gone)
  end
  return gone, floor
end

-- Make room for new entries in a log of limited size; returns whether there is room. Entries that
-- every group has acknowledged are removed first; then the oldest, if they may be dropped, and only
-- these are counted.
local function make_room(log, stat, count, most, full)
  local over = redis.call('XLEN', log) + count - most
  if over <= 0 then
    return true
  end
  -- Remove some more than needed, so that the next calls need not trim.
  local spare = math.min(1000, math.floor(most / 10))
  local gone, floor = trim(log, math.max(0, most - count - spare))
  over = over - gone
  if over > 0 and floor then
    over = over - trim_node(log, floor, over)
  end
  if over > 0 then
    if full == 'block' then
      return false
    end
    redis.call('HINCRBY', stat, 'dropped', redis.call('XTRIM', log, 'MAXLEN', most - count))
  end
  return true
end
