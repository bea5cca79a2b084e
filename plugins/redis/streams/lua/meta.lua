-- Keep what a stream is, unless that is kept already; gives what is kept. Safe to repeat.
-- KEYS meta; ARGV partitions hasher codec layout
local meta, kept = KEYS[1], {}
for at, name in ipairs({'partitions', 'hasher', 'codec', 'layout'}) do
  redis.call('HSETNX', meta, name, ARGV[at])
  kept[at] = redis.call('HGET', meta, name)
end
return kept
