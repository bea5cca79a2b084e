-- Lets a script run on a server that is out of memory: such a server refuses the first write of a
-- script, but not later ones. The write below deletes nothing. Only scripts that add jobs do not
-- include this file, so that running jobs can always finish.
redis.call('DEL', tag .. ':full')
