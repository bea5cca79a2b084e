-- Finished jobs that are not in the history yet: ARGV limit. Returns how many were dropped from the
-- list since the last call, then for each job its id, the time at which it ended, and its record (''
-- if it is gone). Fewer if the records are large.
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
