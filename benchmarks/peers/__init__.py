"""Peers: the programs that drive other job queues, and their exact versions."""
