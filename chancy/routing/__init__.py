"""Routing: several brokers behind one interface."""
