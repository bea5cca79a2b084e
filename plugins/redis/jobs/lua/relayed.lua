-- Ends moves from Postgres: ARGV the marks of jobs that it has deleted. Deletes the marks, and makes the
-- jobs pending that `relay` has stored, unless their mark is gone: another move may store them. Returns how many were handled, fewer if the records are large.
--@include _record
--@include _wake
local ids, woken, handled = {}, {}, 0
for at, mark in ipairs(ARGV) do ids[at] = string.sub(mark, 1, 16) end
for at, id, text in each(ids) do
  handled = at
  local ours = redis.call('ZSCORE', tag .. ':relayed', ARGV[at])
  local job = ours and text and read(text, id)
  -- A later time is that of a push that has replaced it, or of a retry.
  if job and job.state == SCHEDULED and not (job.due > now) then
    redis.call('ZREM', tag .. ':due', id)
    job.state = PENDING
    move(job, id)
    redis.call('ZADD', ready(job.queue), score(job.priority, job.position), id)
    count(SCHEDULED, job.queue, -1)
    count(PENDING, job.queue, 1)
    woken[job.queue] = (woken[job.queue] or 0) + 1
  end
end
redis.call('ZREM', tag .. ':relayed', unpack(ARGV, 1, handled))
write_counts()
for queue, number in pairs(woken) do wake(queue, number, 'w') end
return handled
