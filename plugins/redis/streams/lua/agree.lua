-- Store the definition of a stream unless one is stored. Safe to repeat.
-- KEYS meta; ARGV partitions hasher codec layout
-- Returns {partitions, hasher, codec, layout} as stored
--@include _free
local meta = KEYS[1]
redis.call('HSETNX', meta, 'partitions', ARGV[1])
redis.call('HSETNX', meta, 'hasher', ARGV[2])
redis.call('HSETNX', meta, 'layout', ARGV[4])
local kept = redis.call('HMGET', meta, 'partitions', 'hasher', 'codec', 'layout')
if kept[1] == ARGV[1] and kept[2] == ARGV[2] and kept[4] == ARGV[4] and kept[3] ~= ARGV[3] then
  -- For inspection only, since all codecs can be read: the codec that is written now.
  redis.call('HSET', meta, 'codec', ARGV[3])
  kept[3] = ARGV[3]
end
return kept
