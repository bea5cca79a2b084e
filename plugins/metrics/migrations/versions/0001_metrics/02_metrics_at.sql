-- Serves readers, the roll-up and the removal of old rows.
create index metrics_at on {schema}.metrics (step, at)
