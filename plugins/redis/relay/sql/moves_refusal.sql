-- How often Redis has refused the job $1, when it is tried again, and why; no row if it has not been
-- refused. Index: the primary key.
select refusals, taken_until, problem
from {schema}.redis_moves
where id = $1::uuid
  and problem is not null
