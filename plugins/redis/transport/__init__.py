"""Connections to Redis: clients, pools, cluster routing, scripts."""
