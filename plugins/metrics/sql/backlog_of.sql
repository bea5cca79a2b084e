-- The broker of queue $1, null if it is not declared, and its due and running jobs in Postgres; see
-- the function. Safe to repeat.
select
  (select q.broker from {schema}.queues as q where q.name = $1::text),
  {schema}.queue_unfinished($1::text)
