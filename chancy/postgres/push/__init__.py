"""Pushes: single jobs, bulk pushes, and pushes within the caller's transaction."""
