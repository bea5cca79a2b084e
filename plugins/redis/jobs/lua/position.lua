-- Where an unfinished job stands: ARGV id. Gives its record, the clock, how many go before it, and
-- how many of its queue run; nothing if it is not there.
--@include _record
local text = redis.call('GET', key(ARGV[1]))
local job = text and read(text)
if not job or job.state > HELD then return {} end
local ahead = job.state == PENDING and redis.call('ZRANK', ready(job.queue), ARGV[1]) or 0
local running = redis.call('HGET', tag .. ':n', 'r:' .. job.queue) or 0
return {text, string.format('%.6f', now), math.min(ahead, 10001), math.min(tonumber(running), 10001)}
