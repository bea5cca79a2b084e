"""Pictures of each page of the dashboard, of a shop that is staged for them: ``make pictures``."""
