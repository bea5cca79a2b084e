-- Jobs that failed for good and block their sequence until they are replayed or skipped.
create table {schema}.limits_blocks (
  queue text,
  id uuid,
  key text not null,
  primary key (queue, id)
)
