-- The jobs of a claim whose answer was lost: ARGV worker, lease. As `claim` gives them.
--@include _record
--@include _free
local ids = redis.call('SMEMBERS', tag .. ':w:' .. ARGV[1])
local found = {}
for from = 1, #ids, 1000 do
  local some = {unpack(ids, from, math.min(from + 999, #ids))}
  for at, text in ipairs(fetch(some)) do
    if text and read(text).lease == ARGV[2] then
      found[#found + 1], found[#found + 2] = some[at], text
    end
  end
end
return found
