-- Shared by all scripts: the clock of the server, the layout of a record, notifications, counters.
-- KEYS[1] is the hash tag of the shard; every key of the shard is the tag and a name.
--
-- A record is one string: FRONT changes with each attempt, NUMBERS when a job moves, and REST has
-- the lengths of the strings and then the strings. All JSON is opaque here. `meta` has one JSON
-- object per line, where later keys win; `errors` has one line per failure. records.py mirrors it.
-- The first byte is the version of this layout, also in every later version.
local tag = KEYS[1]
local stamp = redis.call('TIME')
local now = tonumber(stamp[1]) + tonumber(stamp[2]) / 1000000

local VERSION = 1
-- version, state, flags, attempt, crashes, claimed at, asked to stop at, worker, lease
local FRONT, FRONT_SIZE = '>BBBIIddc16c16', 59
-- priority, most attempts, position, run at, pushed at, finished at
local NUMBERS, NUMBERS_SIZE = '>bIdddd', 37
-- lengths of: queue, func, arguments, limits, unique key, meta, errors, result
local LENGTHS, LENGTHS_SIZE = '>HHIIHIII', 26
local REST = FRONT_SIZE + NUMBERS_SIZE + 1
local TEXTS = REST + LENGTHS_SIZE
local NOBODY = string.rep('\0', 16)
local PENDING, RUNNING, SCHEDULED, HELD, FAILED, CANCELLED = 0, 1, 2, 3, 5, 6
local UNTIL_CLAIM = 1
-- Seconds after a push in which its retry may arrive: two waits for a reply of 10 s each, and 5 s of
-- retries in between. Most ids of removed jobs that are remembered per second, to detect retries.
local REPEATED, MOST_GONE = 30, 10000
local NEVER = 0 / 0

local function key(id) return tag .. ':j:' .. id end
local function ready(queue) return tag .. ':r:' .. queue end
-- The functions of jobs of a queue that were set aside, and the jobs of one of them. The length keeps
-- the names apart.
local function asides(queue) return tag .. ':asides:' .. queue end
local function aside(queue, func) return tag .. ':aside:' .. #queue .. ':' .. queue .. func end
-- A double represents 201 priorities and 2^45 positions exactly.
local function score(priority, position) return (100 - priority) * 35184372088832 + position end

-- Lists a record that cannot be read: of another version, or damaged. It must not stop a script, as
-- Redis does not undo what the script has written before. See maintenance/unreadable.py.
local function set_aside(id) redis.pcall('ZADD', tag .. ':unreadable', 'NX', now, id) end

-- The record of a job; false if there is none, or if its version or type is not ours. The rest of it
-- is checked by `read`, and by the process that decodes it: here that would take a fifth of a claim.
local LEAST, byte, try = TEXTS - 1, string.byte, redis.pcall
local function load(id)
  local text = try('GET', tag .. ':j:' .. id)
  -- An error of the type is a table without elements.
  if not text or #text >= LEAST and byte(text, 1) == VERSION then return text end
  set_aside(id)
  return false
end

-- The first bytes of a record, '' if there is none, and if the key is not a string.
local function first_bytes(id, last)
  local text = redis.pcall('GETRANGE', key(id), 0, last)
  return type(text) == 'string' and text or ''
end

-- The first 256 bytes of a record, in which are its numbers and its queue; false as for `load`.
local HEAD = 256
local function head_of(id)
  local text = first_bytes(id, HEAD - 1)
  if #text >= LEAST and byte(text, 1) == VERSION then return text end
  return load(id)
end

-- The parts of a record that may change, as a table; the other parts are never parsed. Nil if the
-- record is damaged. `text` may be its beginning alone if `size` is given.
local function read(text, id, size)
  local job = {}
  job.state, job.flags, job.attempt, job.crashes, job.claimed, job.stop, job.worker, job.lease =
    select(2, struct.unpack(FRONT, text))
  job.priority, job.most, job.position, job.due, job.pushed, job.finished =
    struct.unpack(NUMBERS, text, FRONT_SIZE + 1)
  local n = {struct.unpack(LENGTHS, text, REST)}
  if job.state > CANCELLED
    or (size or #text) ~= TEXTS - 1 + n[1] + n[2] + n[3] + n[4] + n[5] + n[6] + n[7] + n[8]
  then
    set_aside(id)
    return nil
  end
  job.lengths = n
  job.queue = string.sub(text, TEXTS, TEXTS + n[1] - 1)
  local at = TEXTS + n[1] + n[2] + n[3] + n[4]
  job.unique = string.sub(text, at, at + n[5] - 1)
  job.text, job.tail = text, at + n[5]
  return job
end

local function func_of(job)
  local from = TEXTS + job.lengths[1]
  return string.sub(job.text, from, from + job.lengths[2] - 1)
end

local function front(job)
  return struct.pack(FRONT, VERSION, job.state, job.flags, job.attempt, job.crashes, job.claimed,
    job.stop, job.worker, job.lease)
end

local function numbers(job)
  return struct.pack(NUMBERS, job.priority, job.most, job.position, job.due, job.pushed,
    job.finished)
end

-- Of a larger record only the changed bytes are written. A server takes a millisecond for a string
-- of half a megabyte made by a script: Redis 7.0 scans each byte of it.
local LARGE = 4096

-- Overwrites the first bytes of a record: immediately, or by adding it to `written`, a list of keys
-- and values for `MSET`.
local function put(id, text, head, written)
  if #text > LARGE then
    redis.call('SETRANGE', key(id), 0, head)
  elseif written then
    written[#written + 1], written[#written + 2] = key(id), head .. string.sub(text, #head + 1)
  else
    redis.call('SET', key(id), head .. string.sub(text, #head + 1))
  end
end

-- Writes a record of which only FRONT and NUMBERS have changed.
local function move(job, id, written)
  put(id, job.text, front(job) .. numbers(job), written)
end

-- Counts the newlines between two positions of a string. Patterns take twenty times as long.
local function breaks(text, from, to)
  local count, at = 0, string.find(text, '\n', from, true)
  while at and at <= to do
    count, at = count + 1, string.find(text, '\n', at + 1, true)
  end
  return count
end

local function tails(job)
  local n, at = job.lengths, job.tail
  local meta = string.sub(job.text, at, at + n[6] - 1)
  local errors = string.sub(job.text, at + n[6], at + n[6] + n[7] - 1)
  return meta, errors, string.sub(job.text, at + n[6] + n[7])
end

-- The record with new meta, errors and result.
local function rewritten(job, meta, errors, result)
  local n = job.lengths
  return table.concat({front(job), numbers(job),
    struct.pack(LENGTHS, n[1], n[2], n[3], n[4], n[5], #meta, #errors, #result),
    string.sub(job.text, TEXTS, job.tail - 1), meta, errors, result})
end

-- Counters are gathered and written once.
local counted = {}
local function count(state, queue, by)
  local letter = state == PENDING and 'p:' or state == RUNNING and 'r:'
    or state == SCHEDULED and 's:' or state == HELD and 'h:'
  if letter then counted[letter .. queue] = (counted[letter .. queue] or 0) + by end
end
local function write_counts()
  for field, by in pairs(counted) do
    if by ~= 0 and redis.call('HINCRBY', tag .. ':n', field, by) == 0 then
      redis.call('HDEL', tag .. ':n', field)
    end
  end
end

-- Removes a waiting job from its list, and from the counters.
local function leave(job, id)
  if job.state == PENDING then redis.call('ZREM', ready(job.queue), id)
  elseif job.state == SCHEDULED then redis.call('ZREM', tag .. ':due', id)
  else
    local func = func_of(job)
    local name = aside(job.queue, func)
    redis.call('ZREM', name, id)
    if redis.call('EXISTS', name) == 0 then redis.call('SREM', asides(job.queue), func) end
  end
  count(job.state, job.queue, -1)
end

-- What the script has written remains if a notification is refused, so that it must not fail.
local function publish(payload) redis.pcall('PUBLISH', tag .. ':notices', payload) end

-- Runs a command with many members in batches that fit on the stack of Lua.
local function many(command, name, members)
  for from = 1, #members, 4000 do
    redis.call(command, name, unpack(members, from, math.min(from + 3999, #members)))
  end
end

-- A script blocks the server for 1 to 4 ms for each megabyte of records that it reads, and for 10 ms
-- if it rewrites them on Redis 7.0.
local MOST_BYTES = 196608

-- The records of jobs, false for missing and unreadable ones, and their bytes. Stops after the record
-- that exceeds 192 KiB, or `most` bytes, in total: the caller asks for the rest again.
local function fetch(ids, most)
  local texts, bytes = {}, 0
  most = most or MOST_BYTES
  for at, id in ipairs(ids) do
    local text = load(id)
    texts[at] = text
    if text then bytes = bytes + #text end
    if bytes > most then break end
  end
  return texts, bytes
end

-- An iterator over index, id and record, for scripts in which an id may occur twice; see `fetch`.
local function each(ids)
  local at, bytes = 0, 0
  return function()
    at = at + 1
    if at > #ids or bytes > MOST_BYTES then return nil end
    local text = load(ids[at])
    if text then bytes = bytes + #text end
    return at, ids[at], text
  end
end

local function free_key(job, id)
  if #job.unique > 0 and redis.call('HGET', tag .. ':u', job.unique) == id then
    redis.call('HDEL', tag .. ':u', job.unique)
  end
end

local function hex(id)
  local text = string.gsub(id, '.', function(one) return string.format('%02x', string.byte(one)) end)
  return table.concat({string.sub(text, 1, 8), string.sub(text, 9, 12), string.sub(text, 13, 16),
    string.sub(text, 17, 20), string.sub(text, 21)}, '-')
end
