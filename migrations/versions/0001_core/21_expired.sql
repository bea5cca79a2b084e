-- Whether a job has expired: it has not started by its time. One that runs again, after a failure or a
-- crash, has started. The function has no settings of its own, so that it is inlined: every claim uses
-- it, where a job without a time costs a test for null.
create function {schema}.expired(p_expires_at timestamptz, p_attempt int, p_crashes smallint)
returns boolean
language sql volatile
return p_expires_at is not null and p_attempt = 0 and p_crashes = 0
  and p_expires_at <= clock_timestamp()
