-- Takes jobs whose records can be read from the list of unreadable ones, and adds them to the lists in
-- which they belong: ARGV ids. Returns how many stay listed, and how many were restored; of fewer ids if
-- the records are large. The counters are corrected by level.lua.
--@include _record
--@include _retire
local left, restored, woken = 0, 0, {}

local function list(name, number, id) redis.call('ZADD', tag .. name, number, id) end

local function restore(job, id)
  list(':ids', 0, id)
  if job.state == PENDING then
    list(':r:' .. job.queue, score(job.priority, job.position), id)
    woken[job.queue] = true
  elseif job.state == SCHEDULED then
    -- A job that arrives from Postgres may have no time; see `relay`.
    list(':due', job.due == job.due and job.due or now, id)
  elseif job.state == RUNNING then
    redis.call('SADD', tag .. ':w:' .. job.worker, id)
    redis.call('SADD', tag .. ':holders', job.worker)
  elseif job.state == HELD then
    if string.find(tails(job), '"unknown_function"', 1, true) then
      local func = func_of(job)
      redis.call('SADD', asides(job.queue), func)
      redis.call('ZADD', aside(job.queue, func), score(job.priority, job.position), id)
    end
  elseif job.state > HELD then
    list(job.state == FAILED and ':dead' or ':done', job.finished, id)
    -- Writing a job twice to the history has no effect.
    if is_archived(job) then list(':archive', job.finished, id) end
  end
  local holds = job.state <= HELD and (job.state ~= RUNNING or job.flags ~= UNTIL_CLAIM)
  if holds and #job.unique > 0 then redis.call('HSETNX', tag .. ':u', job.unique, id) end
end

for _, id, text in each(ARGV) do
  local job = text and read(text, id)
  if not job and redis.call('EXISTS', key(id)) == 1 then
    left = left + 1
  else
    redis.call('ZREM', tag .. ':unreadable', id)
    if job then
      restored = restored + 1
      restore(job, id)
    end
  end
end
for queue in pairs(woken) do publish('w:' .. queue) end
return {left, restored}
