"""Sending events."""
