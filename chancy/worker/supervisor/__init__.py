"""The supervisor of worker processes, and their link to it."""
