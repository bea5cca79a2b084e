-- Serves the sweep: whether a tenant has partitions.
create index limits_partitions_tenant on {schema}.limits_partitions (queue, tenant)
where tenant is not null
