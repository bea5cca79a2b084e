-- The time of the server. Index: none. No locks. Safe to repeat.
select {schema}.utc(clock_timestamp())
