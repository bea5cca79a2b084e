"""From Postgres to Redis and back: the outbox, adopted jobs, archived history."""
