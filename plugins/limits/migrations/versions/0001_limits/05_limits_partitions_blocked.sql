-- Serves claims: the partitions of a group that has a free slot again.
create index limits_partitions_blocked on {schema}.limits_partitions (queue, blocked)
where blocked is not null
