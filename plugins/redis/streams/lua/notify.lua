-- Notify the members of a processor's group.
-- KEYS ctl; ARGV names and values
--@include _free
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', 256, '*', unpack(ARGV))
