"""The call shapes of other libraries over Redis: a program of theirs runs with another import."""
