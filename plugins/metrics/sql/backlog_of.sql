-- The due and running jobs of queue $1; see the function. Safe to repeat.
select {schema}.queue_backlog($1::text)
