-- Store a queue: ARGV name, its settings as JSON, whether it keeps no history, until when it is
-- paused ('' if it is not), what to do with one that is there: keep, upsert (its pausing stays),
-- or mirror. Gives its settings and its pausing as they stand.
--@include _record
local name, settings, brief, paused, how = unpack(ARGV)
local there = redis.call('HEXISTS', tag .. ':queues', name) == 1
if not there or how ~= 'keep' then
  local changed = redis.call('HGET', tag .. ':queues', name) ~= settings
  redis.call('HSET', tag .. ':queues', name, settings)
  if brief == '1' then redis.call('HSET', tag .. ':brief', name, '')
  else redis.call('HDEL', tag .. ':brief', name) end
  if not there or how == 'mirror' then
    if paused == '' then redis.call('HDEL', tag .. ':paused', name)
    else redis.call('HSET', tag .. ':paused', name, paused) end
  end
  if how ~= 'mirror' or changed then publish('q:') end
end
return {redis.call('HGET', tag .. ':queues', name), redis.call('HGET', tag .. ':paused', name) or ''}
