-- The number of jobs that Redis has refused, up to $1, with the id and the error of the first one. It
-- reads the whole table, which has only those jobs and the ones that are being moved now.
select count(*) over (), id, problem
from (
  select pos, id, problem from {schema}.redis_moves where problem is not null limit $1::int) as m
order by pos
limit 1
