create index workflows_timers_due on {schema}.workflows_timers (due_at)
