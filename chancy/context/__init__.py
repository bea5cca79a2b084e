"""The context of a running job: `current_job()`, progress, checkpoints and completion."""
