"""The commands of ``chancy redis``."""
