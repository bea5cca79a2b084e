"""Where jobs wait, and the options of the executors that run them."""
