-- Serves claims: the ring of tenants that have a partition that may run.
create index limits_tenants_ring on {schema}.limits_tenants (queue, turn)
where turn is not null
