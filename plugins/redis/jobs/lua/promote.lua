-- Makes due jobs pending, earliest first: ARGV limit. Returns how many, fewer if the records are
-- large, and the seconds until the next one is due ('' if there is none).
--@include _record
--@include _free
local due = redis.call('ZRANGEBYSCORE', tag .. ':due', '-inf', string.format('%.6f', now),
  'LIMIT', 0, ARGV[1])
if #due > 0 then
  local texts, written, members = fetch(due), {}, {}
  due = {unpack(due, 1, #texts)}
  local last = redis.call('INCRBY', tag .. ':position', #due)
  for at, id in ipairs(due) do
    local job = texts[at] and read(texts[at], id)
    if job then
      job.state, job.position = PENDING, last - #due + at
      move(job, id, written)
      members[job.queue] = members[job.queue] or {}
      table.insert(members[job.queue], score(job.priority, job.position))
      table.insert(members[job.queue], id)
      count(SCHEDULED, job.queue, -1)
      count(PENDING, job.queue, 1)
    end
  end
  if #written > 0 then redis.call('MSET', unpack(written)) end
  redis.call('ZREM', tag .. ':due', unpack(due))
  for queue, some in pairs(members) do
    many('ZADD', ready(queue), some)
    wake(queue)
  end
  write_counts()
end
local next = redis.call('ZRANGE', tag .. ':due', 0, 0, 'WITHSCORES')
if #next == 0 then return {#due, ''} end
return {#due, string.format('%.6f', math.max(0, tonumber(next[2]) - now))}
