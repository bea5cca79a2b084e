-- Queues that a worker should serve and cannot, each with the reason.
alter table {schema}.workers
  add column broken jsonb not null default '{}'
