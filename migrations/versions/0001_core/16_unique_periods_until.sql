create index unique_periods_until on {schema}.unique_periods (until)
