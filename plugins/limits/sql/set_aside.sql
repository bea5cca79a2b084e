-- At most $2 functions of jobs in a queue that were set aside; see the function. No locks.
select func
from {schema}.set_aside($1::text, $2::int) as set_aside (func)
