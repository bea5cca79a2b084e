-- Deletes waiting jobs: ARGV ids of jobs, which stay if they were ever claimed, or marks of `relay`,
-- which begin with an id, of jobs whose mark is still kept. Returns how many were checked, fewer if
-- the records are large, and then the ids of those that run.
--@include _record
--@include _free
--@include _retire
local ids, gone, answer = {}, {}, {0}
for at, mark in ipairs(ARGV) do ids[at] = string.sub(mark, 1, 16) end

local function is_ours(job, id, mark)
  if mark == id then return job.lease == NOBODY end
  return redis.call('ZSCORE', tag .. ':relayed', mark)
end

for at, id, text in each(ids) do
  answer[1] = at
  local job = text and read(text, id)
  if job and job.state == RUNNING then
    answer[#answer + 1] = id
  elseif job and job.state <= HELD and is_ours(job, id, ARGV[at]) then
    leave(job, id)
    free_key(job, id)
    local period = tag .. ':period:' .. job.unique
    if redis.call('GETRANGE', period, 0, 15) == id then redis.call('DEL', period) end
    gone[#gone + 1] = id
  end
end
drop(gone)
write_counts()
return answer
