-- Makes due jobs pending, earliest first: ARGV limit, worker ('' for none). Returns how many, fewer if
-- the records are large, the seconds until the next one is due ('' if there is none), and how rarely
-- the worker may call: 0 for the promoter.
--@include _record
--@include _free
--@include _wake
-- Of many workers one is the promoter, which calls whenever a job is due: 1,000 workers would otherwise
-- call at the same time. It remains the promoter until it is removed or has not called for TURN_MS. The
-- others call at intervals that depend on their ids, a few of them often enough to replace it within
-- seconds.
local FEW, MOST_AHEAD, TURN_MS = 20, 20, 3000
local function ahead_of(worker)
  local workers = redis.call('ZCARD', tag .. ':beats')
  if worker == '' or workers < FEW then return 0 end
  local promoter = redis.call('GET', tag .. ':promoter')
  if promoter and promoter ~= worker and redis.call('ZSCORE', tag .. ':beats', promoter) then
    return math.min(1 + struct.unpack('>I', worker, 13) % workers, MOST_AHEAD)
  end
  redis.call('SET', tag .. ':promoter', worker, 'PX', TURN_MS)
  return 0
end

local ahead = ahead_of(ARGV[2])
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
    wake(queue, #some / 2, 'w')
  end
  write_counts()
end
local next = redis.call('ZRANGE', tag .. ':due', 0, 0, 'WITHSCORES')
if #next == 0 then return {#due, '', ahead} end
return {#due, string.format('%.6f', math.max(0, tonumber(next[2]) - now)), ahead}
