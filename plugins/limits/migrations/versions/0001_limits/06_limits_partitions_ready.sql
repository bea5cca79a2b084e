-- Serves claims: the partitions whose time has come.
create index limits_partitions_ready on {schema}.limits_partitions (queue, ready_at, last_turn)
where ready_at is not null
