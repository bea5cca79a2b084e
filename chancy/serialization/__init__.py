"""Arguments and results as JSON and back."""
