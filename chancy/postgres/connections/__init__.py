"""Connections outside the pool: for claims, heartbeats and notifications."""
