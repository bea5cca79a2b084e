-- Whether a job that has ended is over its age, of those that failed and of others in seconds: it is
-- as if it were gone, and is so with the next turn of the upkeep.
local function lapsed(text, done, dead)
  local state = string.byte(text, 1)
  if state <= HELD then return false end
  local finished = struct.unpack('>d', text, REST - 8)
  return now - finished > tonumber(state == FAILED and dead or done)
end
