"""The thread executor."""
