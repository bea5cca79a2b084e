-- Carry out the last request after the owner has stopped its instance. ARGV prefix id token
-- Returns {'lost'}, {'reload', name, data} to run it again with these, or {new state}.
--@include _keys
--@include _free
local id, token = ARGV[2], ARGV[3]
if not owns(id, token) then
  return {'lost'}
end
local found = redis.call('HMGET', prefix .. id, 'wanted', 'task', 'data')
local wanted = found[1] or 'reload'
if wanted == 'restart' and is_local(id) then
  wanted = 'reload'
end
if wanted == 'reload' or not (wanted == 'stop' or wanted == 'restart' or wanted == 'remove') then
  redis.call('HDEL', prefix .. id, 'wanted')
  redis.pcall('PUBLISH', prefix .. id, '{"event":"reload","data":null}')
  return {'reload', found[2] or '', found[3] or ''}
end
return {settle(id, wanted, 'LPUSH')}
