"""Shared code of plugins that track groups of jobs in tables of Postgres: batches and workflows."""
