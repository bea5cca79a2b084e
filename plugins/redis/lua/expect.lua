-- Have the ends of jobs told for a while, and give the records that are there, '' for none:
-- ARGV seconds, how many may be expected at most, ids.
--@include _record
local ids = {unpack(ARGV, 3)}
local members = {}
for _, id in ipairs(ids) do
  members[#members + 1], members[#members + 2] = now + ARGV[1], id
end
local name = tag .. ':expected'
redis.call('ZREMRANGEBYSCORE', name, '-inf', now)
many('ZADD', name, members)
local over = redis.call('ZCARD', name) - tonumber(ARGV[2])
if over > 0 then redis.call('ZPOPMIN', name, over) end
local texts = fetch(ids)
for at = 1, #ids do texts[at] = texts[at] or '' end
return texts
