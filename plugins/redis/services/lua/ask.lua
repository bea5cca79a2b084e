-- Request stop, reload or remove. Safe to repeat; the last request wins.
-- ARGV prefix id wanted; returns the previous state, nil if there is no such service.
--@include _keys
--@include _free
local id, wanted = ARGV[2], ARGV[3]
local key = prefix .. id
if redis.call('EXISTS', key) == 0 then
  redis.call('SREM', known, id)
  return false
end
local state = redis.call('HGET', key, 'state') or 'WAIT'
if runs(id) then
  redis.call('HSET', key, 'wanted', wanted)
  nudge(id)
elseif wanted == 'remove' then
  redis.call('LREM', waiting, 0, id)
  redis.call('LREM', ended, 0, id)
  remove(id)
elseif wanted == 'stop' and not OVER[state] then
  redis.call('LREM', waiting, 0, id)
  if state ~= 'STOPPED' then
    settle(id, 'stop')
  end
end
return state
