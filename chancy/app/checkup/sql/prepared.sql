-- Transactions of this database that were prepared at least $1 seconds ago, the oldest first. Reads
-- the views of the server. No locks. Safe to repeat.
select p.gid, p.owner::text, extract(epoch from clock_timestamp() - p.prepared)::float8
from pg_catalog.pg_prepared_xacts as p
where p.database = current_database()
  and p.prepared <= clock_timestamp() - $1::float8 * interval '1 s'
order by p.prepared
limit 6
