-- Stores jobs from Postgres, all or none: ARGV the deadline, most marks to keep, seconds, and for each
-- job its mark, ORDER and REST. A job whose mark exists was stored before and is skipped, even if it is
-- gone now. A job becomes pending once `relayed` reports that Postgres has deleted it: until then a
-- worker that does not know of the move may claim it there. If the process dies before, it becomes
-- pending after so many seconds.
-- Returns id and holder's id of each job whose unique key is held; or 'late', or 'large' if too much is
-- replaced, and nothing is stored.
--@include _record
if now > tonumber(ARGV[1]) then return 'late' end
local marks, orders, fresh = {}, {}, {}
local position, places = nil, {}
local arriving = now + tonumber(ARGV[3])
for at = 4, #ARGV, 3 do marks[#marks + 1] = ARGV[at] end
local known = redis.call('ZMSCORE', tag .. ':relayed', unpack(marks))
for at, mark in ipairs(marks) do
  if not known[at] then
    orders[#orders + 1] = 3 * at + 2
    fresh[#fresh + 1], fresh[#fresh + 2] = now, mark
  end
end
--@include _wake
--@include _push
if #fresh > 0 then
  redis.call('ZADD', tag .. ':relayed', unpack(fresh))
  local over = redis.call('ZCARD', tag .. ':relayed') - tonumber(ARGV[2])
  if over > 0 then redis.call('ZPOPMIN', tag .. ':relayed', over) end
end
for at = 1, #answer, 2 do answer[at] = jobs[answer[at] + 1].id end
return answer
