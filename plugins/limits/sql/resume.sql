-- Ends pauses of rate limits; see the function. Safe to repeat.
select {schema}.limits_resume($1::text, $2::text)
