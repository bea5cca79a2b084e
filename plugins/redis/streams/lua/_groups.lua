-- The groups of a log, each with its fields, by name; none if there is no log.
local function groups(log)
  local found = {}
  if redis.call('EXISTS', log) == 1 then
    for _, one in ipairs(redis.call('XINFO', 'GROUPS', log)) do
      local fields = {}
      for at = 1, #one, 2 do
        fields[one[at]] = one[at + 1]
      end
      found[fields['name']] = fields
    end
  end
  return found
end
