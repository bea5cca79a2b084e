-- Return the processors that have started on a partition. Writes nothing.
-- KEYS log
local names = {}
if redis.call('EXISTS', KEYS[1]) == 1 then
  for at, one in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    names[at] = one[2]
  end
end
return names
