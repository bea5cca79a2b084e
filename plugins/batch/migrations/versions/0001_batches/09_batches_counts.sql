-- The amounts that completions add to the counts of a batch; ended: how many jobs counted as
-- pending.
create type {schema}.batches_counts as (id uuid, ended int, succeeded int, failed int, cancelled int)
