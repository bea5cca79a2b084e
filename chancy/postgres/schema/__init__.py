"""The tables: migrations, their status, and grants for roles."""
