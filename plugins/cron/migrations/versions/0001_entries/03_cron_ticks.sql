-- The outcome of each tick; its key is the second safeguard against firing a tick twice.
create table {schema}.cron_ticks (
  entry text not null,
  tick timestamptz not null,
  manual boolean not null default false,
  job_id uuid,
  run_at timestamptz,
  skipped text,
  missed int not null default 0,
  fired_at timestamptz not null default clock_timestamp(),
  primary key (entry, tick, manual)
)
