-- Unlists jobs that are in the history: ARGV ids, each with the time at which it ended. A job that
-- has ended again since then stays listed.
--@include _record
for at = 1, #ARGV, 2 do
  if redis.call('ZSCORE', tag .. ':archive', ARGV[at]) == ARGV[at + 1] then
    redis.call('ZREM', tag .. ':archive', ARGV[at])
  end
end
