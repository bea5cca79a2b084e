"""Connections beside the pool: for claims, heartbeats and notifications."""
