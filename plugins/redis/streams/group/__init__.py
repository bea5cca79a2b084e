"""A group of processors: who owns which partition, and the fetching of events."""
