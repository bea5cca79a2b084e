-- How many dead letters of a fingerprint ($1) had died by the time $2, without those that were
-- replayed if $3; counts up to $4. Index: dead_letters_fingerprint, alone. No locks. Safe to repeat.
select count(*)
from (
  select
  from {schema}.dead_letters as d
  where d.fingerprint = $1::text
    and d.died_at <= $2::timestamptz
    and (d.replayed_at is null or not $3::boolean)
  limit $4::int) as letters
