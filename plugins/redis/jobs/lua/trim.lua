-- Deletes finished jobs that are older than their retention: ARGV name of the list, seconds, limit.
-- Returns how many were deleted.
--@include _record
--@include _free
--@include _retire
local found = redis.call('ZRANGEBYSCORE', tag .. ARGV[1], '-inf', now - ARGV[2], 'WITHSCORES',
  'LIMIT', 0, ARGV[3])
local ids = {}
for at = 1, #found, 2 do
  ids[#ids + 1] = found[at]
  if now - tonumber(found[at + 1]) < REPEATED then young[#young + 1] = found[at] end
end
if #ids > 0 then
  redis.call('ZREM', tag .. ARGV[1], unpack(ids))
  drop(ids)
  write_gone()
end
return #ids
