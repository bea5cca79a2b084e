-- Repairs the state of queues with rules; see the function. Safe to repeat.
select {schema}.limits_sweep($1::int, $2::float8)
