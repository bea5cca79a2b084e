-- Change the group of a processor: update its members, remove dead ones, make a new plan and notify
-- all members. Atomic, so no lock is needed. Safe to repeat: a call without effect sends no
-- notification.
-- KEYS members plan ctl
-- ARGV action ('join' | 'leave' | 'reap' | 'beat') member lease_ms partitions strategy
-- {version, 1 if the member belongs to it, id of the last message, number of members that are alive,
--  members that were dead…}
--@include _now
--@include _free
--@include _assign
local members, plan, ctl = KEYS[1], KEYS[2], KEYS[3]
local action, member, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count, strategy = tonumber(ARGV[4]), ARGV[5]
local now = now_ms()

local reason
if action == 'join' then
  if redis.call('ZADD', members, now + lease_ms, member) == 1 then
    reason = 'join'
  end
elseif action == 'leave' then
  if redis.call('ZREM', members, member) == 1 then
    reason = 'leave'
  end
elseif action == 'beat' and redis.call('ZSCORE', members, member) then
  redis.call('ZADD', members, now + lease_ms, member)
end
local dead = {}
if action ~= 'beat' then
  dead = redis.call('ZRANGEBYSCORE', members, '-inf', now)
  for _, one in ipairs(dead) do
    redis.call('ZREM', members, one)
    reason = reason or 'dead'
  end
end

local function split(text)
  local parts = {}
  for part in string.gmatch(text or '', '[^,]+') do
    parts[#parts + 1] = part
  end
  return parts
end

local found = redis.call('HMGET', plan, 'version', 'strategy', 'size')
local version, size = tonumber(found[1] or 0), redis.call('ZCARD', members) > 0 and count or 0
-- A plan with another size or strategy is made again. Nothing else reads all members.
if action ~= 'beat'
  and (reason or tonumber(found[3] or 0) ~= size or (size > 0 and found[2] ~= strategy)) then
  local stored = redis.call('HMGET', plan, 'order', 'assigned')
  local before, known = split(stored[1]), split(stored[2])
  local alive = redis.call('ZRANGE', members, 0, -1)
  local living, order, listed, was = {}, {}, {}, {}
  for _, one in ipairs(alive) do
    living[one] = true
  end
  for _, one in ipairs(before) do
    if living[one] then
      order[#order + 1] = one
      listed[one] = true
    end
  end
  for _, one in ipairs(alive) do
    if not listed[one] then
      order[#order + 1] = one
    end
  end
  for at, index in ipairs(known) do
    was[at - 1] = before[tonumber(index)]
  end
  local places = {}
  if #order > 0 then
    local assigned = strategy == 'contiguous' and contiguous(count, order)
      or sticky(count, order, was)
    for partition = 0, count - 1 do
      places[partition + 1] = assigned[partition]
    end
  end
  version = version + 1
  local id = redis.call('XADD', ctl, 'MAXLEN', '~', 256, '*',
    'reason', reason or 'plan', 'member', member, 'version', version)
  redis.call('HSET', plan, 'version', version, 'id', id, 'order', table.concat(order, ','),
    'assigned', table.concat(places, ','), 'size', size, 'strategy', strategy)
end
local last = redis.call('XREVRANGE', ctl, '+', '-', 'COUNT', 1)[1]
local belongs = redis.call('ZSCORE', members, member) and 1 or 0
local living = redis.call('ZCOUNT', members, '(' .. now, '+inf')
return {version, belongs, last and last[1] or '0-0', living, unpack(dead)}
