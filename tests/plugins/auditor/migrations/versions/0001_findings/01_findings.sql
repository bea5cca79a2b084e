create table {schema}.auditor_findings (
  entry bigint not null references {schema}.ledger_entries (id)
);
