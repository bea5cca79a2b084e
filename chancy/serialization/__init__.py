"""Encoding of arguments and results as JSON, and decoding."""
