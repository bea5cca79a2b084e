alter table {schema}.ledger_entries
  add column note text not null default '';
