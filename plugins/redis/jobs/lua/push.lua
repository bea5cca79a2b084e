-- Stores jobs, all or none: ARGV whether an earlier attempt has an unknown outcome (1 or 0); the
-- position before the first job of the call, '' for the last one of the shard; for each job its
-- offset from that position, a string of ORDER, and the REST of a record.
-- Returns one of:
--   a list of index (from 0) and holder's id for each job whose unique key is held, and a list of the
--     ids that existed before
--   'raise', index and holder's id, if such a conflict is an error; nothing is stored
--   'large' if too much is replaced; nothing is stored
--   'known' and the ids that exist or existed recently, if there was an earlier attempt and there
--     are any; nothing is stored
--@include _record
local position, places, orders, ids = tonumber(ARGV[2]), {}, {}, {}
for at = 3, #ARGV, 3 do
  places[#places + 1], orders[#orders + 1] = tonumber(ARGV[at]), at + 1
  ids[#ids + 1] = string.sub(ARGV[at + 1], 1, 16)
end

-- The ids that exist, or were deleted so recently that they are still remembered.
local function known()
  local found, there = {}, {}
  for at, id in ipairs(ids) do there[at] = redis.call('EXISTS', key(id)) == 1 end
  for second = math.floor(now) - REPEATED, math.floor(now) do
    local name = tag .. ':gone:' .. second
    if redis.call('EXISTS', name) == 1 then
      for at, gone in ipairs(redis.call('SMISMEMBER', name, unpack(ids))) do
        there[at] = there[at] or gone == 1
      end
    end
  end
  for at, id in ipairs(ids) do
    if there[at] then found[#found + 1] = id end
  end
  return found
end

local arriving = nil
if ARGV[1] == '1' then
  local found = known()
  if #found > 0 then return {'known', found} end
end
--@include _wake
--@include _push
return {answer, there}
