-- A script that has not written yet is refused by a server that is full; one that has goes on.
-- This deletes nothing. Only what starts services does without it: what runs must be able to go on,
-- and to end.
redis.call('DEL', waiting .. ':full')
