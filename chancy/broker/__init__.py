"""The contract of a store of jobs."""
