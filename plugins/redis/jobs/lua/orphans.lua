-- Removes workers without heartbeats, and returns the jobs claimed by removed workers: ARGV seconds
-- without a heartbeat, limit. Returns id and record of each job; fewer if the records are large.
--@include _record
--@include _free
local beats, workers = tag .. ':beats', tag .. ':workers'
local silent = redis.call('ZRANGEBYSCORE', beats, '-inf', now - ARGV[1], 'LIMIT', 0, 1000)
if #silent > 0 then
  redis.call('ZREM', beats, unpack(silent))
  redis.call('HDEL', workers, unpack(silent))
  redis.call('HDEL', tag .. ':serves', unpack(silent))
end
local found, limit, left = {}, tonumber(ARGV[2]), MOST_BYTES
for _, worker in ipairs(redis.call('SMEMBERS', tag .. ':holders')) do
  if #found >= 2 * limit or left < 0 then break end
  if not redis.call('ZSCORE', beats, worker) then
    local held = tag .. ':w:' .. worker
    local ids = redis.call('SRANDMEMBER', held, limit - #found / 2)
    if #ids == 0 then redis.call('SREM', tag .. ':holders', worker) end
    local texts, bytes = fetch(ids, left)
    left = left - bytes
    for at, text in ipairs(texts) do
      -- A missing record was deleted by hand, an unreadable one is set aside: drop the claim.
      if text and string.byte(text, 2) == RUNNING then
        found[#found + 1], found[#found + 2] = ids[at], text
      else
        redis.call('SREM', held, ids[at])
      end
    end
  end
end
return found
