-- Stores rows for which no daily partition exists, so that a missing partition cannot make the
-- completion of a job fail.
create table {schema}.finished_jobs_default partition of {schema}.finished_jobs default
