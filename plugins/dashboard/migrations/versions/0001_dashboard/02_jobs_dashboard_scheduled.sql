-- Serves the counts of scheduled jobs by queue.
create index jobs_dashboard_scheduled on {schema}.jobs (queue) where state = 2
