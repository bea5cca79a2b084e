"""Benchmarks of chancy against the limits of the machine and the server: see README.md."""
