-- Take pending jobs: ARGV queue, worker, lease, limit.
-- Gives id and record, one after the other, in the order in which they are to run.
--@include _record
--@include _free
local queue, worker, lease = ARGV[1], ARGV[2], ARGV[3]
if not redis.call('ZSCORE', tag .. ':beats', worker) then return {} end
local paused = redis.call('HGET', tag .. ':paused', queue)
if paused and tonumber(paused) > now then return {} end
redis.call('DEL', tag .. ':told:' .. queue)
local popped = redis.call('ZPOPMIN', ready(queue), ARGV[4])
if #popped == 0 then return {} end
local ids = {}
for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
local texts, found, written, taken = fetch(ids), {}, {}, {}
for at, id in ipairs(ids) do
  local text = texts[at]
  -- One that is gone was taken out of the store by hand: there is nothing to run.
  if text then
    local _, flags, attempt, crashes = struct.unpack('>BBII', text)
    if flags == UNTIL_CLAIM then free_key(read(text), id) end
    text = struct.pack(FRONT, RUNNING, flags, attempt + 1, crashes, now, 0, worker, lease)
      .. string.sub(text, FRONT_SIZE + 1)
    found[#found + 1], found[#found + 2] = id, text
    written[#written + 1], written[#written + 2] = key(id), text
    taken[#taken + 1] = id
  end
end
count(PENDING, queue, -#ids)
count(RUNNING, queue, #taken)
write_counts()
if #taken > 0 then
  redis.call('MSET', unpack(written))
  redis.call('SADD', tag .. ':w:' .. worker, unpack(taken))
  redis.call('SADD', tag .. ':holders', worker)
end
return found
