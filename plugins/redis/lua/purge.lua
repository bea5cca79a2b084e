-- Forget jobs that failed, as if they had never been: ARGV ids. Others stay. Gives how many.
--@include _record
--@include _free
--@include _retire
local gone = {}
for at, text in ipairs(fetch(ARGV)) do
  if text and string.byte(text, 1) == FAILED then gone[#gone + 1] = ARGV[at] end
end
if #gone > 0 then
  redis.call('ZREM', tag .. ':dead', unpack(gone))
  redis.call('ZREM', tag .. ':archive', unpack(gone))
  drop(gone)
end
return #gone
