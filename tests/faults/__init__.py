"""Things that are broken on purpose, each by a test of its own: what was pushed is run."""
