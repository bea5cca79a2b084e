-- Adds jobs to the lists in which they belong by their records: ARGV ids. Returns how many were
-- checked, fewer if the records are large, and how many were missing in a list.
--@include _record
local looked, restored, woken = 0, 0, {}

-- Adds a job to a list; returns whether it was missing.
local function list(name, number, id)
  if redis.call('ZSCORE', tag .. name, id) then return false end
  redis.call('ZADD', tag .. name, number, id)
  return true
end

for at, id, text in each(ARGV) do
  looked = at
  local job, missing = text and read(text), false
  if job then
    missing = list(':ids', 0, id)
    if job.state == PENDING then
      if list(':r:' .. job.queue, score(job.priority, job.position), id) then
        missing, woken[job.queue] = true, true
      end
    elseif job.state == SCHEDULED then
      missing = list(':due', job.due, id) or missing
    elseif job.state == RUNNING then
      if redis.call('SADD', tag .. ':w:' .. job.worker, id) == 1 then missing = true end
      if redis.call('SADD', tag .. ':holders', job.worker) == 1 then missing = true end
    elseif job.state > HELD then
      missing = list(job.state == FAILED and ':dead' or ':done', job.finished, id) or missing
    end
    local holds = job.state <= HELD and (job.state ~= RUNNING or job.flags ~= UNTIL_CLAIM)
    if holds and #job.unique > 0 then
      missing = redis.call('HSETNX', tag .. ':u', job.unique, id) == 1 or missing
    end
  end
  if missing then restored = restored + 1 end
end
for queue in pairs(woken) do publish('w:' .. queue) end
return {looked, restored}
