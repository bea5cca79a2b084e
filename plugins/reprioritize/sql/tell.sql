-- Tells the workers of a queue to look from the front. Safe to repeat.
select pg_notify({schema}.channel(), 'r:' || $1::text)::text
