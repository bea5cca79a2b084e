-- The jobs of a claim whose answer was lost: ARGV worker, lease, the cursor to go on from, '0' at
-- first. Gives the next cursor, '0' at the end, and then jobs as `claim` does, some of them again.
--@include _record
--@include _free
local scanned = redis.call('SSCAN', tag .. ':w:' .. ARGV[1], ARGV[3], 'COUNT', 100)
local found = {scanned[1]}
for _, id in ipairs(scanned[2]) do
  -- 43 to 58 is the lease, of FRONT.
  if redis.call('GETRANGE', key(id), 42, 57) == ARGV[2] then
    local text = redis.call('GET', key(id))
    found[#found + 1], found[#found + 2] = id, text
  end
end
return found
