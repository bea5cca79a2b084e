"""The commands of ``chancy redis stream``."""
