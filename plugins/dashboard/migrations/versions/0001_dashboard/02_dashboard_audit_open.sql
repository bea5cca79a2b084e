-- Serves the search for actions whose process has died.
create index dashboard_audit_open on {schema}.dashboard_audit (counted_at) where ended_at is null
