-- Serves events_take.sql while partitions are stalled: it skips their rows, however many there are.
create index redis_events_place on {schema}.redis_events (prefix, stream, partition, pos)
