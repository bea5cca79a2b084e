create table {schema}.audit_entries (
  id bigint generated always as identity primary key,
  at timestamptz not null default now(),
  what text not null
);
