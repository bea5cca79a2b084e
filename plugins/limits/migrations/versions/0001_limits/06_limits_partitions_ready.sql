-- Serves claims: the partitions whose time has come.
create index limits_partitions_ready on {schema}.limits_partitions (queue, ready_at)
where ready_at is not null
