-- Workflows that wait until none of their steps runs any more.
create index workflows_compensating on {schema}.workflows (id)
  where state = 3 or state = 2 and not undoing
