"""Executors on clusters: a worker claims and settles jobs, and the cluster runs their functions."""
