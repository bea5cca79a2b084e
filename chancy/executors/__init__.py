"""Executors run claims: in the worker's event loop, in threads, in processes, or elsewhere."""
