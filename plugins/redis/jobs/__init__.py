"""Queues in Redis: the broker and its scripts."""
