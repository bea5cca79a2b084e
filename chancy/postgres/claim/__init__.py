"""Claims: which rows a worker takes next."""
