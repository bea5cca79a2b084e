-- Release a service after its stopping owner has stopped the instance: it goes to the front of the
-- queue; a local one is removed. ARGV prefix id token; returns the new state, or 'lost'.
--@include _keys
--@include _free
local id, token = ARGV[2], ARGV[3]
if not owns(id, token) then
  return 'lost'
end
return settle(id, redis.call('HGET', prefix .. id, 'wanted'), 'RPUSH')
