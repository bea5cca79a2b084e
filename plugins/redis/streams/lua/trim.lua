-- Trim a log towards its size; see _trim. Safe to repeat.
-- KEYS log; ARGV size
--@include _groups
--@include _trim
return trim(KEYS[1], tonumber(ARGV[1]))
