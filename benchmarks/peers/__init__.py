"""Other job queues: the programs that drive them, and their exact versions."""
