"""``chancy demo``: Python's own standard library, indexed by jobs and checked without them."""
