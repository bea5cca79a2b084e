-- The position of an unfinished job: ARGV id. Returns its record, the clock, how many jobs are ahead
-- of it, and how many of its queue are running; nothing if it does not exist.
--@include _record
local text = load(ARGV[1])
local job = text and read(text, ARGV[1])
if not job or job.state > HELD then return {} end
local ahead = job.state == PENDING and redis.call('ZRANK', ready(job.queue), ARGV[1]) or 0
local running = redis.call('HGET', tag .. ':n', 'r:' .. job.queue) or 0
return {text, string.format('%.6f', now), math.min(ahead, 10001), math.min(tonumber(running), 10001)}
