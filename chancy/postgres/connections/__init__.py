"""How a worker uses sessions of the pool, and its connections for heartbeats and notifications."""
