-- Whether a finished job is older than its retention in seconds (one for failed jobs, one for
-- others). It counts as deleted; the next turn of the upkeep deletes it.
local function lapsed(text, done, dead)
  local state = string.byte(text, 2)
  if state <= HELD then return false end
  local finished = struct.unpack('>d', text, REST - 8)
  return now - finished > tonumber(state == FAILED and dead or done)
end
