-- Read entries in small steps, at most `count`, and fewer if they are large: no command of Redis has
-- a limit in bytes. Returns the entries, and whether there may be more. At least one entry is read;
-- they exceed `most_bytes` by the last step, one to `most_step` entries.
-- read: called with a number of entries and the id of the last one, or nil; returns entries.
local function few(count, most_bytes, most_step, read)
  local entries, bytes = {}, 0
  while #entries < count do
    if bytes >= most_bytes then
      return entries, true
    end
    local step = math.min(most_step, #entries + 1, count - #entries)
    local found = read(step, entries[#entries] and entries[#entries][1])
    for _, entry in ipairs(found) do
      entries[#entries + 1] = entry
      -- Without fields if it is pending and was dropped from the log.
      for _, field in ipairs(entry[2] or {}) do
        bytes = bytes + #field
      end
    end
    if #found < step then
      return entries, false
    end
  end
  return entries, true
end
