"""The Postgres broker."""
