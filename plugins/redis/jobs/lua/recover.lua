-- The jobs of a claim whose reply was lost: ARGV worker, lease, cursor ('0' at first). Returns the
-- next cursor ('0' at the end), then id and record of each job; a job may occur more than once.
--@include _record
local scanned = redis.call('SSCAN', tag .. ':w:' .. ARGV[1], ARGV[3], 'COUNT', 100)
local found = {scanned[1]}
for _, id in ipairs(scanned[2]) do
  -- Bytes 44 to 59 are the lease, in FRONT.
  local text = string.sub(first_bytes(id, 58), 44) == ARGV[2] and load(id)
  if text then found[#found + 1], found[#found + 2] = id, text end
end
return found
