"""Connections to Redis: the wire, pools, clusters, scripts."""
