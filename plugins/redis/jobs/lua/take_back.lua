-- Deletes waiting jobs that were never claimed: ARGV ids, or marks of `relay` that begin with them, for
-- jobs whose mark is still kept. Returns how many were checked, fewer if the records are large.
--@include _record
--@include _free
--@include _retire
local ids, gone, looked = {}, {}, 0
for at, mark in ipairs(ARGV) do ids[at] = string.sub(mark, 1, 16) end
for at, id, text in each(ids) do
  looked = at
  local ours = ARGV[at] == id or redis.call('ZSCORE', tag .. ':relayed', ARGV[at])
  local job = ours and text and read(text, id)
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
