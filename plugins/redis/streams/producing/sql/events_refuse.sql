-- Records why the row $1 of the event outbox, by position, cannot be appended yet.
-- Index: the primary key. Locks: the row. Safe to repeat.
update {schema}.redis_events
set problem = left($2::text, 2000)
where pos = $1::bigint
  and problem is distinct from left($2::text, 2000)
