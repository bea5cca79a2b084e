-- Jobs that ended and are to be in the history: ARGV how many at most. Gives how many were passed
-- over since the last time, and then for each its id, when it ended, and its record, '' if it is
-- gone. Fewer where the records are large.
--@include _record
local over = redis.call('GET', tag .. ':overflow') or '0'
redis.call('DEL', tag .. ':overflow')
local found = redis.call('ZRANGE', tag .. ':archive', 0, ARGV[1] - 1, 'WITHSCORES')
local ids, answer = {}, {over}
for at = 1, #found, 2 do ids[#ids + 1] = found[at] end
local texts = fetch(ids)
for at, text in ipairs(texts) do
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = ids[at], found[2 * at], text or ''
end
return answer
