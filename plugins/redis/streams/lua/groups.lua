-- Return the processors that have started on a partition. Writes nothing.
-- KEYS log
--@include _groups
local names = {}
for name in pairs(groups(KEYS[1])) do
  names[#names + 1] = name
end
return names
