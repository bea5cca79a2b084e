-- Skips failed jobs that block their sequence; see the function. Safe to repeat.
select {schema}.limits_skip($1::text, $2::text)
