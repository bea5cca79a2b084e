-- Notifies the workers of a queue to scan from the front. Safe to repeat.
select pg_notify({schema}.channel(), 'r:' || $1::text)::text
