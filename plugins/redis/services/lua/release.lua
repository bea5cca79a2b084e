-- The owner has stopped its copy because it ends: it is the next to be taken. One that is local is
-- removed. ARGV prefix id token; what has become of it, or 'lost'.
--@include _keys
--@include _free
local id, token = ARGV[2], ARGV[3]
if not owns(id, token) then
  return 'lost'
end
return settle(id, redis.call('HGET', prefix .. id, 'wanted'), 'RPUSH')
