-- Acquire a partition that is free, expired, or owned by this member. Safe to repeat: each call
-- starts a new epoch, to which all pending entries are transferred, in order.
-- KEYS own log park stat; ARGV group member lease_ms start
-- {'busy', ms left} | {'parked'} | {'owned', epoch, pending, id last delivered}
--@include _now
--@include _free
--@include _groups
local own, log, park, stat = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, member, lease_ms, start = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if redis.call('EXISTS', park) == 1 then
  return {'parked'}
end
local now = now_ms()
local found = redis.call('HMGET', own, 'owner', 'until')
if found[1] and found[1] ~= member and tonumber(found[2]) > now then
  return {'busy', tonumber(found[2]) - now}
end
-- A lost group had read some of the log: later entries must not be skipped.
if start == '$' and redis.call('HEXISTS', own, 'epoch') == 1 then
  start = '0'
end
local made = redis.pcall('XGROUP', 'CREATE', log, group, start, 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
  return made
end
local epoch = redis.call('HINCRBY', own, 'epoch', 1)
redis.call('HSET', own, 'owner', member, 'until', now + lease_ms)
redis.call('HDEL', own, 'halted', 'exchange')
-- Transfers as many entries as former owners had in memory: hundreds.
local consumer = 'e' .. epoch
redis.call('XGROUP', 'CREATECONSUMER', log, group, consumer)
local pending, cursor = 0, '0-0'
repeat
  local moved = redis.call(
    'XAUTOCLAIM', log, group, consumer, 0, cursor, 'COUNT', 1000, 'JUSTID')
  cursor = moved[1]
  pending = pending + #moved[2]
  if moved[3] and #moved[3] > 0 then
    -- Pending entries that were dropped from the log. Redis 6.2 transfers them instead.
    redis.call('HINCRBY', stat, 'lost:' .. group, #moved[3])
  end
until cursor == '0-0'
for _, one in ipairs(redis.call('XINFO', 'CONSUMERS', log, group)) do
  if one[2] ~= consumer then
    redis.call('XGROUP', 'DELCONSUMER', log, group, one[2])
  end
end
return {'owned', epoch, pending, groups(log)[group]['last-delivered-id']}
