-- Have the ends of jobs told for a while, and give the records that are there, '' for none:
-- ARGV seconds, how many may be expected at most, the seconds for which ended jobs are there, and
-- failed ones, ids. Of fewer than were asked for where the records are large.
--@include _record
--@include _lapsed
local ids = {unpack(ARGV, 5)}
local members = {}
for _, id in ipairs(ids) do
  members[#members + 1], members[#members + 2] = now + ARGV[1], id
end
local name = tag .. ':expected'
many('ZADD', name, members)
-- More leave than come, and never many at once.
local room = 2 * #ids + 10
local old = redis.call('ZRANGEBYSCORE', name, '-inf', now, 'LIMIT', 0, room)
if #old > 0 then redis.call('ZREM', name, unpack(old)) end
local over = redis.call('ZCARD', name) - tonumber(ARGV[2])
if over > 0 then redis.call('ZPOPMIN', name, math.min(over, room)) end
local texts = fetch(ids)
for at, text in ipairs(texts) do
  if not text or lapsed(text, ARGV[3], ARGV[4]) then texts[at] = '' end
end
return texts
