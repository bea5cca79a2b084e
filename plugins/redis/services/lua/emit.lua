-- Publish an event of the one that runs. ARGV prefix id token message; 0 if the lease was lost.
--@include _keys
if not owns(ARGV[2], ARGV[3]) then
  return 0
end
redis.call('PUBLISH', prefix .. ARGV[2], ARGV[4])
return 1
