-- The time of the server. No locks. Safe to repeat.
select clock_timestamp()
