-- Declares a queue: ARGV name, settings as JSON, whether finished jobs are not kept, the end of a
-- pause ('' if not paused), whether to overwrite the settings of an existing queue (its pause stays),
-- which jobs go to the history (a all, n none, f failed ones), and its rules (see _rules; '' if none).
-- Returns the stored settings and pause.
--@include _record
--@include _free
--@include _rules
local name, settings, brief, paused, upsert, history, rules = unpack(ARGV)
local old = redis.call('HGET', tag .. ':queues', name)
if not old or (upsert == '1' and old ~= settings) then
  redis.call('HSET', tag .. ':queues', name, settings)
  if brief == '1' then redis.call('HSET', tag .. ':brief', name, '')
  else redis.call('HDEL', tag .. ':brief', name) end
  if not old and paused ~= '' then redis.call('HSET', tag .. ':paused', name, paused) end
  publish('q:')
end
if not old or upsert == '1' then
  if history == 'f' then redis.call('HDEL', tag .. ':history', name)
  else redis.call('HSET', tag .. ':history', name, history) end
  -- A bucket continues where the old rate has brought it: the change adds no tokens.
  local before = rules_of(name)
  if before and before.rate then fill_bucket(before, bucket_of(before)) end
  if rules == '' then redis.call('HDEL', tag .. ':rules', name)
  else redis.call('HSET', tag .. ':rules', name, rules) end
end
return {redis.call('HGET', tag .. ':queues', name), redis.call('HGET', tag .. ':paused', name) or ''}
