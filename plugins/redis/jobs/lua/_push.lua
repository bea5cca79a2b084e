-- Stores jobs, all or none; returns 'large' instead if they replace too much for one call. `orders`
-- has the indexes in ARGV of strings of ORDER, each followed by the REST of a record. `answer` is the
-- result of `push`; `there` has the ids that existed before. `position`, if not nil, is the position
-- before the first job of the call; `places` has the offsets. `arriving`, if not nil, is the time at
-- which new jobs become pending.
-- ORDER: id; kind of time (0 now, 1 absolute, 2 delay in seconds), the time; priority, most attempts;
-- on conflict (0 no key, 1 skip, 2 replace, 3 raise), whether the key is released at the claim, the
-- least seconds that it is held, the seconds of a cap (-1: none); attempts and crashes in another
-- store, and the time of the push there (0: none)
local ORDER = '>c16BdbIBBddIId'
local REPLACE, RAISE = 2, 3

local jobs, careful = {}, false
for _, at in ipairs(orders) do
  local job = {rest = ARGV[at + 1]}
  job.id, job.kind, job.at, job.priority, job.most, job.conflict, job.flags, job.period, job.cap,
    job.attempt, job.crashes, job.since = struct.unpack(ORDER, ARGV[at])
  local lengths = {struct.unpack(LENGTHS, job.rest)}
  job.lengths = lengths
  job.queue = string.sub(job.rest, LENGTHS_SIZE + 1, LENGTHS_SIZE + lengths[1])
  if job.conflict > 0 then
    local from = LENGTHS_SIZE + lengths[1] + lengths[2] + lengths[3] + lengths[4] + 1
    job.unique = string.sub(job.rest, from, from + lengths[5] - 1)
  end
  careful = careful or job.conflict == RAISE
  jobs[#jobs + 1] = job
end

-- A push without a period is compared with unfinished jobs only.
local function holder(job)
  local kept = job.period >= 0 and redis.call('GET', tag .. ':period:' .. job.unique)
  if kept and struct.unpack('>d', kept, 17) > now then return string.sub(kept, 1, 16) end
  local id = redis.call('HGET', tag .. ':u', job.unique)
  -- The record may have been deleted by hand, or evicted. An unreadable one keeps its key.
  return id and redis.call('EXISTS', key(id)) == 1 and id
end

if careful then
  local held = {}
  for at, job in ipairs(jobs) do
    if job.unique then
      local found = holder(job)
      if not found then
        held[job.unique] = held[job.unique] or job.id
        found = held[job.unique]
      end
      if found ~= job.id and job.conflict == RAISE then return {'raise', at - 1, found} end
    end
  end
end

-- A replacement copies all of the old record but its arguments: meta and failures of any size.
local copied = 0
for _, job in ipairs(#jobs > 1 and jobs or {}) do
  local found = job.conflict == REPLACE and holder(job)
  local size = found and redis.pcall('STRLEN', key(found))
  if type(size) == 'number' and size > LARGE then
    local lengths = {struct.unpack(LENGTHS, first_bytes(found, TEXTS - 2), REST)}
    copied = copied + math.max(0, size - lengths[3])
    if copied > MOST_BYTES then return 'large' end
  end
end

position = position or tonumber(redis.call('INCRBY', tag .. ':position', #jobs)) - #jobs
local members, due, ids, woken, rewound, there = {}, {}, {}, {}, {}, {}

local function state_at(moment)
  return moment == moment and moment > now and SCHEDULED or PENDING
end

local function enter(state, queue, id, priority, place, moment)
  if state == SCHEDULED then
    due[#due + 1], due[#due + 2] = moment, id
  else
    members[queue] = members[queue] or {}
    table.insert(members[queue], score(priority, place))
    table.insert(members[queue], id)
  end
  count(state, queue, 1)
end

-- Writes the gathered members; required before a sorted set is changed directly.
local function flush()
  if #due > 0 then many('ZADD', tag .. ':due', due) end
  for queue, some in pairs(members) do many('ZADD', ready(queue), some) end
  due, members = {}, {}
end

-- Replaces the arguments of a waiting job without reading the old ones, whose size is unbounded.
local function take_over(id, job, place)
  local text = first_bytes(id, LARGE - 1)
  local size = #text < LARGE and #text or redis.call('STRLEN', key(id))
  local old = #text >= TEXTS - 1 and string.byte(text, 1) == VERSION and read(text, id, size)
  if not old or old.state == RUNNING or old.state > HELD then return end
  flush()
  local moment = job.moment
  if job.cap >= 0 and moment == moment then moment = math.min(moment, old.pushed + job.cap) end
  local state = state_at(moment)
  local stays = old.state == PENDING and state == PENDING and old.priority == job.priority
  if not stays then old.position = place end
  local n, m = old.lengths, job.lengths
  local from = LENGTHS_SIZE + m[1] + m[2]
  local own = TEXTS + n[1] + n[2]
  if own > #text then text = redis.call('GETRANGE', key(id), 0, own - 2) end
  old.text = text
  -- One that was set aside becomes due again, like others: its time may have changed.
  leave(old, id)
  old.state = state
  enter(state, old.queue, id, job.priority, old.position, moment)
  flush()
  old.priority, old.due = job.priority, moment
  -- Its own strings, except the arguments, which come from the new job.
  local behind = redis.call('GETRANGE', key(id), own + n[3] - 1, -1)
  local after = table.concat({front(old), numbers(old),
    struct.pack(LENGTHS, n[1], n[2], m[3], n[4], n[5], n[6], n[7], n[8]),
    string.sub(text, TEXTS, own - 1), string.sub(job.rest, from + 1, from + m[3]),
    behind})
  redis.call('SET', key(id), after)
  if state == PENDING then rewound[old.queue] = (rewound[old.queue] or 0) + 1 end
end

local function insert(job, place)
  local state = arriving and SCHEDULED or state_at(job.moment)
  local since = job.since > 0 and job.since or now
  local text = struct.pack(FRONT, VERSION, state, job.flags, job.attempt, job.crashes, 0, 0, NOBODY,
    NOBODY)
    .. struct.pack(NUMBERS, job.priority, job.most, place, job.moment, since, 0) .. job.rest
  if not redis.call('SET', key(job.id), text, 'NX') then
    local version, old = string.byte(first_bytes(job.id, 1), 1, 2)
    -- A record that cannot be read may be of a later version: it stays.
    if version ~= VERSION or not old or old <= HELD then
      there[#there + 1] = job.id
      return
    end
    -- The job had finished: it starts again.
    redis.call('ZREM', tag .. ':done', job.id)
    redis.call('ZREM', tag .. ':dead', job.id)
    redis.call('SET', key(job.id), text)
  end
  enter(state, job.queue, job.id, job.priority, place, arriving or job.moment)
  ids[#ids + 1], ids[#ids + 2] = 0, job.id
  if state == PENDING then woken[job.queue] = (woken[job.queue] or 0) + 1 end
  if job.unique then
    redis.call('HSET', tag .. ':u', job.unique, job.id)
    if job.period >= 0 then
      redis.call('SET', tag .. ':period:' .. job.unique, job.id .. struct.pack('>d', now + job.period),
        'PX', string.format('%.0f', math.ceil(job.period * 1000) + 1))
    end
  end
end

local answer = {}
for at, job in ipairs(jobs) do
  job.moment = job.kind == 0 and NEVER or job.kind == 1 and job.at or now + job.at
  local found = job.unique and holder(job)
  if found and found ~= job.id then
    if job.conflict == REPLACE then take_over(found, job, position + (places[at] or at)) end
    answer[#answer + 1], answer[#answer + 2] = at - 1, found
  else
    insert(job, position + (places[at] or at))
  end
end
flush()
if #ids > 0 then many('ZADD', tag .. ':ids', ids) end
write_counts()
for queue, number in pairs(woken) do wake(queue, number, 'w') end
for queue, number in pairs(rewound) do wake(queue, number, 'r') end
