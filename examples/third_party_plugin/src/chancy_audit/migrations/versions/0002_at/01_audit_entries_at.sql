create index concurrently if not exists audit_entries_at on {schema}.audit_entries (at);
