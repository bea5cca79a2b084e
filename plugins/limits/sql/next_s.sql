-- Seconds until a waiting job of a queue may start; see the function. No locks.
select {schema}.limits_next_s($1::text)
