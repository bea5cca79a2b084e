"""Jobs between Postgres and Redis: adopted jobs, the archive."""
