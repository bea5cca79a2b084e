-- Job counts: 'p:', 'r:' or 's:' (pending, running, scheduled) and the queue, then the number.
--@include _record
return redis.call('HGETALL', tag .. ':n')
