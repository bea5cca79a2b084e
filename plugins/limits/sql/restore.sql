-- Makes jobs pending again that were set aside; see the function. Safe to repeat.
select {schema}.limits_restore($1::text, $2::text[], $3::int)
