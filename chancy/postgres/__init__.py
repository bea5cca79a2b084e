"""The store of jobs on Postgres."""
