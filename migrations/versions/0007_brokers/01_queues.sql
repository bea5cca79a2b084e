-- Which broker has the jobs of a queue, and its options for it. Rows that are there, and those of
-- workers of the release before, have theirs here. A catalog change: no row is written.
alter table {schema}.queues
  add column broker text not null default 'postgres',
  add column broker_options jsonb
