-- The version, its xmin, of the job that was taken first: what Redis has may be that one, and nothing later is to
-- be deleted for it. Null, of those that are on their way just now: they stay, and are taken anew.
alter table {schema}.redis_moves add column seen text
