-- Lets a script run on a server that is out of memory: such a server refuses the first write of a
-- script, but not later ones. The write below changes nothing, since the key never expires. Scripts
-- that append events do not include this file, so that processing can continue and make room.
redis.call('PERSIST', KEYS[1])
