-- Publish an event of a running service. ARGV prefix id token message; returns 0 if the lease is
-- lost.
--@include _keys
if not owns(ARGV[2], ARGV[3]) then
  return 0
end
redis.call('PUBLISH', prefix .. ARGV[2], ARGV[4])
return 1
