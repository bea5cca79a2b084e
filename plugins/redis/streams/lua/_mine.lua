-- Whether a partition is still owned by a member in an epoch: a lease that ended is lost, even if
-- nobody has taken the partition since, because its pending entries were not watched meanwhile.
local function mine(own, member, epoch)
  local found = redis.call('HMGET', own, 'owner', 'epoch', 'until')
  return found[1] == member and found[2] == epoch and tonumber(found[3]) > now_ms()
end
