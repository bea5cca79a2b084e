-- Lists jobs, newest first: ARGV the id to start before ('' for the newest), the limit, states as
-- digits ('' for all), queue and func ('' for all), the retention of finished and of failed jobs in
-- seconds. Returns the id to continue before ('' at the end), then id and record of each job.
--@include _record
--@include _lapsed
local LOOK = 500
local before, limit = ARGV[1], tonumber(ARGV[2])
local from = before == '' and '+' or '(' .. before
local ids = redis.call('ZREVRANGEBYLEX', tag .. ':ids', from, '-', 'LIMIT', 0, LOOK)
local found, last = {}, ''
for at, text in ipairs(fetch(ids)) do
  local id = ids[at]
  last = id
  if text then
    local queue, func = struct.unpack('>HH', text, REST)
    local state = string.byte(text, 2)
    if (ARGV[3] == '' or string.find(ARGV[3], state, 1, true))
      and (ARGV[4] == '' or string.sub(text, TEXTS, TEXTS + queue - 1) == ARGV[4])
      and (ARGV[5] == '' or string.sub(text, TEXTS + queue, TEXTS + queue + func - 1) == ARGV[5])
      and not lapsed(text, ARGV[6], ARGV[7])
    then
      found[#found + 1], found[#found + 2] = id, text
      if #found >= 2 * limit then break end
    end
  end
end
if #ids < LOOK and last == ids[#ids] then last = '' end
return {last, unpack(found)}
