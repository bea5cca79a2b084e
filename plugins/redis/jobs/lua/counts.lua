-- How many jobs there are: 'p:', 'r:' or 's:' (pending, running, scheduled) and the queue; a number.
--@include _record
return redis.call('HGETALL', tag .. ':n')
