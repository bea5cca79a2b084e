-- Find logs with an entry after a position. Returns the index of each, from 0, and the id of that entry,
-- without its fields, or '' and an error. Leaves out the last ones after 192 KiB of entries: Lua copies
-- them.
-- KEYS logs; ARGV positions
local found, bytes = {}, 0
for at, log in ipairs(KEYS) do
  local read = redis.pcall('XREAD', 'COUNT', 1, 'STREAMS', log, ARGV[at])
  if read and read.err then
    found[#found + 1] = {at - 1, '', read.err}
  elseif read then
    local entry = read[1][2][1]
    found[#found + 1] = {at - 1, entry[1], ''}
    for _, field in ipairs(entry[2]) do
      bytes = bytes + #field
    end
  end
  if bytes > 196608 then
    break
  end
end
return found
