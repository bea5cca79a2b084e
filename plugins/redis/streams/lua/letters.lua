-- Return the oldest dead letters, at most so many, and fewer if they are large. Writes nothing.
-- KEYS dead; ARGV most most-bytes
-- {entries, 1 if there may be more}
--@include _few
local entries, more = few(tonumber(ARGV[1]), tonumber(ARGV[2]), 1, function(step, last)
  return redis.call('XRANGE', KEYS[1], last and '(' .. last or '-', '+', 'COUNT', step)
end)
return {entries, more and 1 or 0}
