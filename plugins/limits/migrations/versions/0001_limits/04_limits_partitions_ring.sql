-- Serves claims: the ring of partitions that may run.
create index limits_partitions_ring on {schema}.limits_partitions (queue, priority desc, turn)
where turn is not null
