-- The clock of the server. No index, no locks. Safe to repeat.
select extract(epoch from clock_timestamp())::float8
