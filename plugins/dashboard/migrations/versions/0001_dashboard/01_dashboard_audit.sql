-- What people did in the dashboard. A row is written in the transaction of its action; an action in
-- batches counts the jobs of each batch in it, and when it has done so.
create table {schema}.dashboard_audit (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  who text not null,
  action text not null,
  subject text not null,
  detail jsonb,
  jobs int not null default 0,
  stopped_by text,
  counted_at timestamptz not null default clock_timestamp(),
  ended_at timestamptz,
  error text
)
