"""How fast chancy is, beside what the machine and the server allow: see README.md."""
