-- Jobs that were added later, until a transaction that has locked all shards counts them there.
-- They have rows of their own so that a long transaction that adds jobs blocks no settlement.
create table {schema}.batches_added (
  batch_id uuid not null,
  id bigint generated always as identity,
  jobs int not null check (jobs > 0),
  primary key (batch_id, id)
)
