"""The worker: claims jobs, runs them, and settles what became of them."""
