"""The history of the core tables: env.py, one file per revision in versions/."""
