"""What plugins share that track groups of jobs in tables of Postgres: batches and workflows."""
