-- Handles finished jobs: kept up to a number of them, or deleted.
local ended, expired = {}, {}
local done, dead = {}, {}
local brief, history = {}, {}
-- Jobs to be written to the history in Postgres; above the limit the oldest are dropped.
local archive, MOST_UNARCHIVED = {}, 100000
-- Jobs deleted so soon after their push that a retry of the push may still arrive.
local young = {}

local function is_brief(queue)
  if brief[queue] == nil then
    brief[queue] = redis.call('HEXISTS', tag .. ':brief', queue) == 1
  end
  return brief[queue]
end

-- Which jobs of a queue go to the history: a all, n none, otherwise failed ones.
local function is_archived(job)
  if history[job.queue] == nil then
    history[job.queue] = redis.call('HGET', tag .. ':history', job.queue)
  end
  return history[job.queue] == 'a' or job.state == FAILED and history[job.queue] ~= 'n'
end

-- Finishes a job; returns whether its record is kept.
local function retire(job, id)
  free_key(job, id)
  ended[#ended + 1] = id
  if job.state ~= FAILED and is_brief(job.queue) then
    expired[#expired + 1] = id
    -- Bytes 81 to 88 are the time of the push, in NUMBERS.
    if now - struct.unpack('>d', job.text, 81) < REPEATED then young[#young + 1] = id end
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

-- Removes at most twice as many jobs as were added, so that a lowered limit takes effect gradually.
local function trim(name, most)
  local over = redis.call('ZCARD', tag .. name) - most
  if over <= 0 then return end
  local popped = redis.call('ZPOPMIN', tag .. name, math.min(over, 2 * #ended + 10))
  local ids = {}
  for at = 1, #popped, 2 do
    ids[#ids + 1] = popped[at]
    if now - tonumber(popped[at + 1]) < REPEATED then young[#young + 1] = popped[at] end
  end
  drop(ids)
end

-- Remembers deleted ids in one set per second, 70 bytes per job, which expires when no retry can
-- arrive any more. A full set accepts no further ids.
local function write_gone()
  local name = tag .. ':gone:' .. math.floor(now)
  local size = #young > 0 and redis.call('SCARD', name) or MOST_GONE
  if size >= MOST_GONE then return end
  many('SADD', name, young)
  if size == 0 then redis.call('EXPIRE', name, REPEATED + 2) end
end

local function write_ends(most_done, most_dead)
  if #ended == 0 then return end
  if redis.call('EXISTS', tag .. ':expected') == 1 then
    local wanted = redis.call('ZMSCORE', tag .. ':expected', unpack(ended))
    for at, id in ipairs(ended) do
      if wanted[at] then redis.pcall('PUBLISH', tag .. ':ends', 'f:' .. hex(id)) end
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
  write_gone()
end
