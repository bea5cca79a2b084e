-- Rolls up the metrics of step $1; see the function. Safe to repeat.
select {schema}.metrics_roll_up($1::int, $2::int, $3::float8, $4::int, $5::boolean)
