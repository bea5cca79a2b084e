-- Jobs that were added later, until somebody who has locked all shards puts them there. Rows of their
-- own: who adds jobs in a long transaction holds up no settlement.
create table {schema}.batches_added (
  batch_id uuid not null,
  id bigint generated always as identity,
  jobs int not null check (jobs > 0),
  primary key (batch_id, id)
)
