-- Begins a turn of the upkeep: ARGV ms until the next one may begin. 0 if it is too soon.
--@include _record
--@include _free
return redis.call('SET', tag .. ':upkeep', '', 'NX', 'PX', ARGV[1]) and 1 or 0
