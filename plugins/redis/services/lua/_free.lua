-- Make sure that a full server does not refuse the script: it refuses only scripts that have not
-- written yet, and this deletes nothing. Scripts that start services omit it: services that run must
-- be able to continue and to end.
redis.call('DEL', waiting .. ':full')
