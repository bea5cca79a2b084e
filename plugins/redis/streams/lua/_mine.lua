-- Whether a member still owns a partition in an epoch. A lease that has ended is lost even if no
-- other member has acquired the partition, because its pending entries were unprotected meanwhile.
local function mine(own, member, epoch)
  local found = redis.call('HMGET', own, 'owner', 'epoch', 'until')
  return found[1] == member and found[2] == epoch and tonumber(found[3]) > now_ms()
end
