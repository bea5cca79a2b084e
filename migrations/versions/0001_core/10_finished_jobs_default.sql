-- Takes what no day's partition takes, so that finishing a job cannot fail for want of one.
create table {schema}.finished_jobs_default partition of {schema}.finished_jobs default
