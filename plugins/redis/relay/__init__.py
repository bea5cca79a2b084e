"""Jobs between Postgres and Redis: the outbox, adopted jobs, the archive."""
