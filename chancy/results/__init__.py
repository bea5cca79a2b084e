"""How a caller learns that a job has finished."""
