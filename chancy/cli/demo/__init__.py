"""``chancy demo``: indexes Python's standard library with jobs, and checks the result directly."""
