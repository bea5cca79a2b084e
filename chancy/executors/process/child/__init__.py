"""Inside a child process: one job after the other, or many coroutines."""
