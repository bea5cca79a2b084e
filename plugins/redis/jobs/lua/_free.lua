-- A script that has not written yet is refused by a server that is full; one that has goes on.
-- This deletes nothing. Only scripts that add jobs do without it: what runs must be able to end.
redis.call('DEL', tag .. ':full')
