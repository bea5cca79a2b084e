-- Lists jobs, newest first: ARGV the id to start before ('' for the newest), the limit, states as
-- digits ('' for all), queue and func ('' for all), the retention of finished and of failed jobs in
-- seconds. Returns the id to continue before ('' at the end), then id and record of each job; fewer
-- if the records are large. Those of other jobs are not read.
--@include _record
--@include _lapsed
local LOOK = 500
local before, limit = ARGV[1], tonumber(ARGV[2])
local from = before == '' and '+' or '(' .. before
local ids = redis.call('ZREVRANGEBYLEX', tag .. ':ids', from, '-', 'LIMIT', 0, LOOK)
local found, last, bytes = {}, '', 0

local function is_wanted(id, text)
  local queue, func = struct.unpack('>HH', text, REST)
  local names = TEXTS + queue + func - 1
  if names > #text then text = first_bytes(id, names - 1) end
  return (ARGV[3] == '' or string.find(ARGV[3], string.byte(text, 2), 1, true))
    and (ARGV[4] == '' or string.sub(text, TEXTS, TEXTS + queue - 1) == ARGV[4])
    and (ARGV[5] == '' or string.sub(text, TEXTS + queue, names) == ARGV[5])
    and not lapsed(text, ARGV[6], ARGV[7])
end

for _, id in ipairs(ids) do
  last = id
  local text = head_of(id)
  if text and is_wanted(id, text) then
    if #text >= HEAD then text = load(id) end
    found[#found + 1], found[#found + 2] = id, text
    bytes = bytes + #text
    if #found >= 2 * limit or bytes > MOST_BYTES then break end
  end
end
if #ids < LOOK and last == ids[#ids] then last = '' end
return {last, unpack(found)}
