-- Store jobs, all or none: ARGV whether that was tried before, and nobody knows what became of it (1,
-- or 0); the position after which those of the call begin, '' for the last one given; for each job its
-- place behind that, one text of ORDER, and one of REST of a record.
-- Gives, one after the other, the places (from 0) of jobs whose unique key another job has, and
-- the ids of those, and then in a list of their own the ids of jobs that were there before; or
-- 'raise', the place, and the id, where that is to be an error; or, of what was tried before, 'known'
-- and the ids of jobs that are there, or were a moment ago, if there are any: nothing is stored then.
--@include _record
local position, places, orders, ids = tonumber(ARGV[2]), {}, {}, {}
for at = 3, #ARGV, 3 do
  places[#places + 1], orders[#orders + 1] = tonumber(ARGV[at]), at + 1
  ids[#ids + 1] = string.sub(ARGV[at + 1], 1, 16)
end

-- The ids of those that are there, or ended so short a time ago that it is known.
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

if ARGV[1] == '1' then
  local found = known()
  if #found > 0 then return {'known', found} end
end
--@include _push
return {answer, there}
