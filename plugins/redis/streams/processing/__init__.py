"""Processing of the events of an owned partition."""
