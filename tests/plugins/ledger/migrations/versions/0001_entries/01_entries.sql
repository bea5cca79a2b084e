create table {schema}.ledger_entries (
  id bigint generated always as identity primary key,
  worker_id uuid not null
);
