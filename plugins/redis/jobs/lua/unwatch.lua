-- Stops watching jobs: ARGV ids.
--@include _record
return redis.call('ZREM', tag .. ':expected', unpack(ARGV))
