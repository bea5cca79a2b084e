-- Turns of partitions in the ring.
create sequence {schema}.limits_turns
