"""References to jobs, and waiting for jobs to finish."""
