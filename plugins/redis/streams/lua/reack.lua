-- Acknowledge events up to an id again, up to 1,000. All of them were acknowledged: they are only
-- pending if a failover has lost that, and would otherwise stay so, and fill the log, for as long as
-- the partition has this owner. Safe to repeat.
-- KEYS own log; ARGV group member epoch last
--@include _now
--@include _mine
--@include _free
--@include _ack
local own, log, group = KEYS[1], KEYS[2], ARGV[1]
if not mine(own, ARGV[2], ARGV[3]) then
  return 0
end
local ids = {}
for _, entry in ipairs(redis.call('XPENDING', log, group, '-', ARGV[4], 1000)) do
  ids[#ids + 1] = entry[1]
end
ack(log, group, ids, 1)
return #ids
