-- Serves the groups of the dashboard, from the index alone.
create index dead_letters_fingerprint on {schema}.dead_letters (fingerprint, died_at, id)
include (replayed_at)
