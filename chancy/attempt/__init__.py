"""One attempt at a job: its claim, its outcome, the decision, and the settlement."""
