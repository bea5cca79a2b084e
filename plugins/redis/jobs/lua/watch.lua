-- Watches jobs, whose completions are then published for some time, and returns their records (''
-- for missing ones): ARGV seconds, most watched jobs, the retention of finished and of failed jobs in
-- seconds, ids. Fewer records than requested if they are large.
--@include _record
--@include _free
--@include _lapsed
local ids = {unpack(ARGV, 5)}
local members = {}
for _, id in ipairs(ids) do
  members[#members + 1], members[#members + 2] = now + ARGV[1], id
end
local name = tag .. ':expected'
many('ZADD', name, members)
-- More entries are removed than were added, but never many at once.
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
