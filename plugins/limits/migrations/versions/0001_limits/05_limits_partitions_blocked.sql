-- Serves claims: the partitions of a group that has a free slot again, in the order of their last turns.
create index limits_partitions_blocked on {schema}.limits_partitions (queue, blocked, last_turn)
where blocked is not null
