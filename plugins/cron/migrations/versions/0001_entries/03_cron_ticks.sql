-- What became of each tick; its key is the second lock on a tick being fired twice.
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
