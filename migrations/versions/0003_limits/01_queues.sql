-- What one attempt may take, and the options of the executor. A catalog change: no row is written.
alter table {schema}.queues
  add column limits jsonb,
  add column options jsonb
