-- Trim a log towards its size; see _trim. Safe to repeat.
-- KEYS log; ARGV size
--@include _trim
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
return trim(KEYS[1], tonumber(ARGV[1]))
