"""What a running job can reach."""
