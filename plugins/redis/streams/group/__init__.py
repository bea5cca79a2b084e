"""The group of a processor: membership, partition ownership and the fetching of events."""
