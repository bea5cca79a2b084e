"""Claims: selects the rows that a worker takes next."""
