-- Deletes failed jobs without a trace: ARGV ids. Others stay. Returns how many were deleted.
--@include _record
--@include _free
--@include _retire
local gone = {}
for _, id in ipairs(ARGV) do
  if string.byte(redis.call('GETRANGE', key(id), 0, 0)) == FAILED then gone[#gone + 1] = id end
end
if #gone > 0 then
  redis.call('ZREM', tag .. ':dead', unpack(gone))
  redis.call('ZREM', tag .. ':archive', unpack(gone))
  drop(gone)
end
return #gone
