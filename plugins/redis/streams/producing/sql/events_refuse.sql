-- Records why the row $2 of the event outbox of the prefix $1, by position, cannot be appended yet.
-- Index: the primary key. Locks: the row, unless it is locked. Safe to repeat.
update {schema}.redis_events
set problem = left($3::text, 2000)
where prefix = $1::text
  and pos = any(array(
    select pos
    from {schema}.redis_events
    where prefix = $1::text
      and pos = $2::bigint
    for update skip locked))
  and problem is distinct from left($3::text, 2000)
