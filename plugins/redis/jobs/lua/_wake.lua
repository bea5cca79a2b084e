-- Wakes idle workers of a queue. The set ':idle:' and the queue has those whose last claim found fewer
-- jobs than they had room for: the address of their process, in 16 bytes, and the worker. A worker
-- that is woken leaves the set until its next claim: it is not woken twice, or while it is busy.
local MOST_WOKEN, MOST_TRIED = 16, 64

-- Wakes at most `most` idle workers with a notification of a kind. Returns whether there were any, and
-- how many receive it: a process that has died or cannot listen does not. What the script has written
-- remains if a notification is refused, so that it must not fail: polls find the jobs.
local function wake_idle(queue, most, kind)
  local woken, tried = 0, 0
  while woken < most and tried < MOST_TRIED do
    local one = redis.call('SPOP', tag .. ':idle:' .. queue)
    if not one then break end
    tried = tried + 1
    local channel = tag .. ':notices:' .. string.sub(one, 1, 16)
    local heard = redis.pcall('PUBLISH', channel, kind .. ':' .. queue)
    -- An error is a table.
    if type(heard) == 'number' and heard > 0 then woken = woken + 1 end
  end
  return tried > 0, woken
end

-- Wakes workers for pending jobs: as many as there are jobs, and spare ones, in case some of
-- them are frozen. Claims that leave jobs behind wake further ones. All workers are notified if no
-- chosen one receives it, and at most once a second if none is idle: the set may be incomplete.
local function wake(queue, jobs, kind)
  local idle = redis.call('SCARD', tag .. ':idle:' .. queue)
  local spare = idle <= 4 and 3 or idle <= 20 and 2 or 1
  local any, woken = wake_idle(queue, math.min(jobs, MOST_WOKEN) + spare, kind)
  if woken == 0 and (any or redis.call('SET', tag .. ':told:' .. queue, '', 'NX', 'PX', 1000)) then
    redis.pcall('PUBLISH', tag .. ':notices', kind .. ':' .. queue)
  end
end
