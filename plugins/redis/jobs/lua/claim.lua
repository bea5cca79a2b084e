-- Claims pending jobs: ARGV queue, worker, lease, limit, handoff, whether to wait there (1 or 0), and
-- the handed-off jobs that arrived, each as lease and id in one string.
-- Returns n, the clock, whether there may be more jobs (1 or 0), and then id and record of each job:
-- first n jobs that were handed off and are not confirmed; then the jobs claimed now, with their
-- records before the claim, in the order in which they run.
--@include _record
--@include _free
local queue, worker, lease, limit, desk = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local MOST_PARKED = 1000
local parked, given = tag .. ':parked:' .. queue, tag .. ':given:' .. worker .. queue
local found = {0, string.format('%.6f', now), 0}
redis.call('ZREM', parked, worker .. desk)
if redis.call('EXISTS', given) == 1 then
  for at = 7, #ARGV do redis.call('SREM', given, ARGV[at]) end
  for _, one in ipairs(redis.call('SMEMBERS', given)) do
    local id = string.sub(one, 17)
    local text = redis.call('GET', key(id))
    if text and string.byte(text, 1) == RUNNING
      and string.sub(text, 43, 58) == string.sub(one, 1, 16)
    then
      found[#found + 1], found[#found + 2] = id, text
      found[1] = found[1] + 1
    else
      redis.call('SREM', given, one)
    end
  end
end
if limit == 0 or not redis.call('ZSCORE', tag .. ':beats', worker) then return found end
local paused = redis.call('HGET', tag .. ':paused', queue)
if paused and tonumber(paused) > now then return found end
redis.call('DEL', tag .. ':told:' .. queue)
local popped = redis.call('ZPOPMIN', ready(queue), limit)
if #popped < 2 * limit and ARGV[6] == '1' then
  redis.call('ZADD', parked, now, worker .. desk)
  -- Entries of dead workers are dropped when they are the oldest.
  if redis.call('ZCARD', parked) > MOST_PARKED then redis.call('ZPOPMIN', parked) end
end
if #popped == 0 then return found end
local ids = {}
for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
local texts, written, taken = fetch(ids), {}, {}
if #popped == 2 * limit or #texts < #ids then found[3] = 1 end
if #texts < #ids then
  -- Jobs beyond the size limit go back to their positions.
  local back = {}
  for at = #texts + 1, #ids do
    back[#back + 1], back[#back + 2] = popped[2 * at], ids[at]
  end
  many('ZADD', ready(queue), back)
  ids = {unpack(ids, 1, #texts)}
end
for at, id in ipairs(ids) do
  local text = texts[at]
  -- A missing record was deleted by hand: there is nothing to run.
  if text then
    local _, flags, attempt, crashes = struct.unpack('>BBII', text)
    if flags == UNTIL_CLAIM then free_key(read(text), id) end
    put(id, text, struct.pack(FRONT, RUNNING, flags, attempt + 1, crashes, now, 0, worker, lease),
      written)
    found[#found + 1], found[#found + 2] = id, text
    taken[#taken + 1] = id
  end
end
count(PENDING, queue, -#ids)
count(RUNNING, queue, #taken)
write_counts()
if #written > 0 then redis.call('MSET', unpack(written)) end
if #taken > 0 then
  redis.call('SADD', tag .. ':w:' .. worker, unpack(taken))
  redis.call('SADD', tag .. ':holders', worker)
end
return found
