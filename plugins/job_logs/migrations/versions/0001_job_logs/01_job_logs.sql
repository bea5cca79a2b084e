-- The lines that jobs have logged, in the order of their numbers; inserted, never updated. total: the
-- bytes of the job's lines up to and with this one.
create table {schema}.job_logs (
  job_id uuid not null,
  number bigint not null generated always as identity,
  at timestamptz not null,
  attempt int not null,
  level smallint not null,
  total int not null,
  line text not null,
  primary key (job_id, number)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000)
