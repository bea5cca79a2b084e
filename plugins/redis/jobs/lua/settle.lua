-- Settles attempts: ARGV most finished and most failed jobs to keep, then a string for each. Returns
-- how many were processed, fewer if the records are large, and then the indexes (from 0) of stale
-- settlements. The lease in the record is the fence.
--@include _record
--@include _free
--@include _retire
--@include _rules
--@include _wake
local ORDER, ORDER_SIZE = '>c16c16BBBdIII', 55
local MOST_ERRORS = 25
-- The kind of time of a job that waits for a worker that knows its function.
local ASIDE = 3
local ids, orders = {}, {}
for at = 3, #ARGV do
  orders[at - 2] = {struct.unpack(ORDER, ARGV[at])}
  ids[at - 2] = orders[at - 2][1]
end
local texts, written, gone = fetch(ids), {}, {}
local rewound, asided, back, due, names = {}, {}, {}, {}, {}
local answer = {#texts}

local function with_failure(errors, job, failure)
  names[job.worker] = names[job.worker] or hex(job.worker)
  local line = string.format('%d %s %.6f\t', job.attempt, names[job.worker], now) .. failure
  if #errors == 0 then return line end
  errors = errors .. '\n' .. line
  if breaks(errors, 1, #errors) >= MOST_ERRORS then errors = string.sub(errors, string.find(errors, '\n') + 1) end
  return errors
end

-- No job of the queue starts before the job that asked for a pause is due.
local function pause(job)
  local rules = rules_of(job.queue)
  if not rules or not rules.rate then return end
  local tokens, paused = bucket_of(rules)
  fill_bucket(rules, tokens, math.max(paused, job.due))
end

local function go_back(job, id, kind, at)
  job.worker, job.claimed, job.stop = NOBODY, 0, 0
  if job.state == SCHEDULED then
    job.due = kind == 1 and at or now + at
    due[#due + 1], due[#due + 2] = job.due, id
  elseif job.state == PENDING then
    local name = ready(job.queue)
    back[name] = back[name] or {}
    table.insert(back[name], score(job.priority, job.position))
    table.insert(back[name], id)
    rewound[job.queue] = (rewound[job.queue] or 0) + 1
  elseif kind == ASIDE then
    local func = func_of(job)
    local name = aside(job.queue, func)
    redis.call('SADD', asides(job.queue), func)
    back[name] = back[name] or {}
    table.insert(back[name], score(job.priority, job.position))
    table.insert(back[name], id)
    asided[job.queue] = true
  end
  count(job.state, job.queue, 1)
end

-- Meta, errors and old result of a record after the attempt, and the new result.
local function tails_after(job, order)
  local _, _, _, _, _, _, failure_size, result_size, meta_size = unpack(order)
  local text, meta, errors, result = order.text, tails(job)
  local from = ORDER_SIZE + 1
  if failure_size > 0 then
    errors = with_failure(errors, job, string.sub(text, from, from + failure_size - 1))
  end
  from = from + failure_size
  if meta_size > 0 then
    local patch = string.sub(text, from + result_size)
    meta = #meta == 0 and patch or meta .. '\n' .. patch
  end
  return meta, errors, result, string.sub(text, from, from + result_size - 1)
end

-- Settles a job; returns the FRONT of its record.
local function settle(job, id, order)
  local _, _, state, flags, kind, at, failure_size, result_size, meta_size = unpack(order)
  if job.stop > 0 and state < 4 then state = CANCELLED end
  local changed = failure_size + result_size + meta_size + job.lengths[8] > 0
  local meta, errors, result, found
  if changed then meta, errors, result, found = tails_after(job, order) end
  gone[job.worker] = gone[job.worker] or {}
  table.insert(gone[job.worker], id)
  if job.stop > 0 then redis.call('SREM', tag .. ':stop:' .. job.worker, id) end
  count(RUNNING, job.queue, -1)
  if flags % 2 == 1 then job.attempt = math.max(0, job.attempt - 1) end
  if flags % 4 >= 2 then job.crashes = job.crashes + 1
  elseif flags % 8 >= 4 and state < 4 then job.crashes = 0 end
  job.state = state
  local kept = true
  if state >= 4 then
    job.finished, result = now, found
    kept = retire(job, id)
  else
    go_back(job, id, kind, at)
    if flags >= 8 and state == SCHEDULED then pause(job) end
  end
  if kept and changed then
    written[#written + 1], written[#written + 2] = key(id), rewritten(job, meta, errors, result)
  elseif kept then
    move(job, id, written)
  end
  return front(job)
end

-- The fast path of `settle` for a job that succeeded without a unique key, failure or meta, as nearly
-- all do; nil for others.
local ZERO, DONE = string.rep('\0', 8), string.char(VERSION, 4)
local function succeed(text, id, order)
  local _, _, state, flags, _, _, failure, size, meta = unpack(order)
  if state ~= 4 or flags ~= 0 or failure > 0 or meta > 0 or string.sub(text, 20, 27) ~= ZERO then
    return nil
  end
  local n = {struct.unpack(LENGTHS, text, REST)}
  if n[5] > 0 or n[8] > 0 or #text ~= TEXTS - 1 + n[1] + n[2] + n[3] + n[4] + n[6] + n[7] then
    return nil
  end
  local queue, worker = string.sub(text, TEXTS, TEXTS + n[1] - 1), string.sub(text, 28, 43)
  local tail = TEXTS + n[1] + n[2] + n[3] + n[4]
  gone[worker] = gone[worker] or {}
  table.insert(gone[worker], id)
  count(RUNNING, queue, -1)
  local head = DONE .. string.sub(text, 3, REST - 9) .. struct.pack('>d', now)
  local job = {state = state, queue = queue, unique = '', text = text, lengths = n, tail = tail}
  if not retire(job, id) then return head end
  if size == 0 then
    put(id, text, head, written)
  else
    written[#written + 1], written[#written + 2] = key(id), head
      .. struct.pack(LENGTHS, n[1], n[2], n[3], n[4], n[5], n[6], n[7], size)
      .. string.sub(text, TEXTS, tail + n[6] + n[7] - 1) .. string.sub(order.text, ORDER_SIZE + 1)
  end
  return head
end

local fresh = {}
for at = 1, #texts do
  local id, order = ids[at], orders[at]
  local text = fresh[id] or texts[at]
  order.text = ARGV[at + 2]
  local state, lease
  if text then
    state = string.byte(text, 2)
    lease = string.sub(text, 44, 59)
  end
  if not text or lease ~= order[2] then
    answer[#answer + 1] = at - 1
  elseif state == RUNNING then
    fresh[id] = succeed(text, id, order)
    local job = not fresh[id] and read(text, id)
    if job then
      fresh[id] = settle(job, id, order)
    elseif not fresh[id] then
      -- It is set aside: no worker holds it any more.
      redis.call('SREM', tag .. ':w:' .. string.sub(text, 28, 43), id)
      answer[#answer + 1] = at - 1
    end
  end
end
if #written > 0 then redis.call('MSET', unpack(written)) end
for worker, some in pairs(gone) do redis.call('SREM', tag .. ':w:' .. worker, unpack(some)) end
for name, members in pairs(back) do many('ZADD', name, members) end
many('ZADD', tag .. ':due', due)
write_ends(tonumber(ARGV[1]), tonumber(ARGV[2]))
write_counts()
for queue, number in pairs(rewound) do wake(queue, number, 'r') end
-- The script does not know which workers have the function, so it notifies all.
for queue in pairs(asided) do publish('r:' .. queue) end
return answer
