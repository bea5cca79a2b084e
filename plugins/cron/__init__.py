"""Cron: jobs that are pushed by the clock."""
