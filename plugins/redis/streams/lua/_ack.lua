-- Acknowledge entries by their ids, from a position in the list on: `unpack` takes few thousand.
local function ack(log, group, ids, first)
  for at = first, #ids, 1000 do
    redis.call('XACK', log, group, unpack(ids, at, math.min(at + 999, #ids)))
  end
end
