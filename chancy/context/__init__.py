"""The context of a running job: `current_job()`, progress, steps and completion."""
