"""The async executor."""
