-- For events_take.sql while partitions stand still: their rows are passed over, however many.
create index redis_events_place on {schema}.redis_events (stream, partition, pos)
