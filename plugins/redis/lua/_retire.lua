-- What becomes of jobs that end: kept, up to a number of them, or forgotten.
local ended, expired = {}, {}
local done, dead = {}, {}
local brief, history = {}, {}
-- For the history in Postgres, until somebody has written them there; above so many the oldest go.
local archive, MOST_UNARCHIVED = {}, 100000

local function is_brief(queue)
  if brief[queue] == nil then
    brief[queue] = redis.call('HEXISTS', tag .. ':brief', queue) == 1
  end
  return brief[queue]
end

-- Of which jobs of a queue the history is kept: a all, n none; those that failed where nobody says.
local function is_archived(job)
  if history[job.queue] == nil then
    history[job.queue] = redis.call('HGET', tag .. ':history', job.queue)
  end
  return history[job.queue] == 'a' or job.state == FAILED and history[job.queue] ~= 'n'
end

-- A step of a workflow is kept in any case: its end is told in Postgres after it is written here, and
-- read here by a sweep if nobody lived to tell it.
local function is_step(job)
  local meta = tails(job)
  return string.find(meta, '"workflow": {', 1, true) ~= nil
end

-- Whether the record of a job that ended now is to be kept.
local function retire(job, id)
  free_key(job, id)
  ended[#ended + 1] = id
  if job.state ~= FAILED and is_brief(job.queue) and not is_step(job) then
    expired[#expired + 1] = id
    return false
  end
  local kept = job.state == FAILED and dead or done
  kept[#kept + 1], kept[#kept + 2] = now, id
  if is_archived(job) then archive[#archive + 1], archive[#archive + 2] = now, id end
  return true
end

local function drop(ids)
  if #ids == 0 then return end
  local keys = {}
  for at, id in ipairs(ids) do keys[at] = key(id) end
  redis.call('UNLINK', unpack(keys))
  redis.call('ZREM', tag .. ':ids', unpack(ids))
end

-- At most twice as many leave as came, so that a lower bound takes its time.
local function trim(name, most)
  local over = redis.call('ZCARD', tag .. name) - most
  if over <= 0 then return end
  local popped = redis.call('ZPOPMIN', tag .. name, math.min(over, 2 * #ended + 10))
  local ids = {}
  for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
  drop(ids)
end

local function write_ends(most_done, most_dead)
  if #ended == 0 then return end
  if redis.call('EXISTS', tag .. ':expected') == 1 then
    local wanted = redis.call('ZMSCORE', tag .. ':expected', unpack(ended))
    for at, id in ipairs(ended) do
      if wanted[at] then redis.call('PUBLISH', tag .. ':ends', 'f:' .. hex(id)) end
    end
  end
  many('ZADD', tag .. ':done', done)
  many('ZADD', tag .. ':dead', dead)
  if #archive > 0 then
    many('ZADD', tag .. ':archive', archive)
    local over = redis.call('ZCARD', tag .. ':archive') - MOST_UNARCHIVED
    if over > 0 then
      redis.call('ZPOPMIN', tag .. ':archive', over)
      redis.call('INCRBY', tag .. ':overflow', over)
    end
  end
  drop(expired)
  trim(':done', most_done)
  trim(':dead', most_dead)
end
