-- Write entries to the dead letters and acknowledge them, atomically. Safe to repeat after a lost
-- reply: entries that are not pending are skipped.
-- KEYS own log dead stat; ARGV group member epoch most error id…
-- {'lost'} | {'ok', written, how many of the ids were processed: fewer if the entries are large, and
-- how many older dead letters were dropped}
--@include _now
--@include _mine
--@include _free
local MOST_BYTES = 196608
local own, log, dead, stat = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, most, reason = ARGV[1], tonumber(ARGV[4]), ARGV[5]
if not mine(own, ARGV[2], ARGV[3]) then
  return {'lost'}
end
local written, processed, bytes, now = 0, 0, 0, now_ms()
for at = 6, #ARGV do
  if bytes > MOST_BYTES then
    break
  end
  local id = ARGV[at]
  processed = processed + 1
  if #redis.call('XPENDING', log, group, id, id, 1) == 1 then
    local entry = redis.call('XRANGE', log, id, id)[1]
    if entry then
      local fields = entry[2]
      for _, field in ipairs(fields) do
        bytes = bytes + #field
      end
      fields[#fields + 1] = '_xid'
      fields[#fields + 1] = id
      fields[#fields + 1] = '_error'
      fields[#fields + 1] = reason
      fields[#fields + 1] = '_at'
      fields[#fields + 1] = now
      redis.call('XADD', dead, '*', unpack(fields))
      written = written + 1
    else
      redis.call('HINCRBY', stat, 'lost:' .. group, 1)
    end
    redis.call('XACK', log, group, id)
  end
end
local dropped = redis.call('XTRIM', dead, 'MAXLEN', most)
if dropped > 0 then
  redis.call('HINCRBY', stat, 'letters_dropped:' .. group, dropped)
end
return {'ok', written, processed, dropped}
