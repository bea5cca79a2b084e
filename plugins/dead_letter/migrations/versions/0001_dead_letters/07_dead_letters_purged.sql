-- Purged dead letters, kept for as long as the sweep would otherwise find their jobs missing.
create table {schema}.dead_letters_purged (
  id uuid primary key,
  died_at timestamptz not null
)
