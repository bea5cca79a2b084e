"""The seam of plugins: the base class, its hooks, and what plugins build on."""
