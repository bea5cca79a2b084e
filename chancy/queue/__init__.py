"""Queues, and the options of the executors that run their jobs."""
