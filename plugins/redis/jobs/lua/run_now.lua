-- Makes scheduled jobs pending now: ARGV ids, in the order of their new positions. Returns how many
-- were checked, fewer if the records are large, and then the ids that were scheduled. Jobs that arrive
-- from Postgres stay as they are; see `relay`.
--@include _record
--@include _free
--@include _wake
local function arrives(job, id)
  return not (job.due > now) and tonumber(redis.call('ZSCORE', tag .. ':due', id) or now) > now
end

local found, woken = {0}, {}
local position = tonumber(redis.call('INCRBY', tag .. ':position', #ARGV)) - #ARGV
for at, id, text in each(ARGV) do
  found[1] = at
  local job = text and read(text, id)
  if job and job.state == SCHEDULED and not arrives(job, id) then
    redis.call('ZREM', tag .. ':due', id)
    job.state, job.position, job.due = PENDING, position + at, now
    move(job, id)
    redis.call('ZADD', ready(job.queue), score(job.priority, job.position), id)
    count(SCHEDULED, job.queue, -1)
    count(PENDING, job.queue, 1)
    found[#found + 1] = id
    woken[job.queue] = (woken[job.queue] or 0) + 1
  end
end
write_counts()
for queue, number in pairs(woken) do wake(queue, number, 'w') end
return found
