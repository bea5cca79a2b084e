-- Deletes waiting jobs that were never claimed: ARGV ids. Returns how many were checked, fewer if the
-- records are large.
--@include _record
--@include _free
--@include _retire
local gone, looked = {}, 0
for at, id, text in each(ARGV) do
  looked = at
  local job = text and read(text, id)
  if job and job.lease == NOBODY and job.state ~= RUNNING and job.state <= HELD then
    redis.call('ZREM', ready(job.queue), id)
    redis.call('ZREM', tag .. ':due', id)
    count(job.state, job.queue, -1)
    free_key(job, id)
    local period = tag .. ':period:' .. job.unique
    if redis.call('GETRANGE', period, 0, 15) == id then redis.call('DEL', period) end
    gone[#gone + 1] = id
  end
end
drop(gone)
write_counts()
return looked
