"""The pages say what the code does: their examples run, their tables are complete."""
