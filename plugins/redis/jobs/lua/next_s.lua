-- Seconds until a job of a queue may start by its rate: ARGV queue. '' if its rate limit delays none.
--@include _record
--@include _rules
local rules = rules_of(ARGV[1])
if not rules or not rules.rate then return '' end
local tokens, paused = bucket_of(rules)
local left = math.max(paused - now, (1 - tokens) / rules.rate)
return left > 0 and string.format('%.6f', left) or ''
