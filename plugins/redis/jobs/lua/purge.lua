-- Deletes failed jobs without a trace: ARGV ids. Others stay. Returns how many were deleted.
--@include _record
--@include _free
--@include _retire
local gone = {}
for _, id in ipairs(ARGV) do
  local version, state = string.byte(first_bytes(id, 1), 1, 2)
  if version == VERSION and state == FAILED then gone[#gone + 1] = id end
end
if #gone > 0 then
  redis.call('ZREM', tag .. ':dead', unpack(gone))
  redis.call('ZREM', tag .. ':archive', unpack(gone))
  drop(gone)
end
return #gone
