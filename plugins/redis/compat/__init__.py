"""Compatible APIs of other Redis libraries, whose programs run with a changed import."""
