-- Stores the counts of a worker: a row for each queue and function, given as columns. waits, runs and
-- ends are JSON arrays. No locks. Not safe to repeat: the rows would count twice.
insert into {schema}.metrics
select 0, clock_timestamp(), r.queue, r.func, r.succeeded, r.failed, r.retried, r.crashed, r.rescued,
  r.cancelled, r.expired, r.snoozed, r.released, r.stale, r.wait_s, r.run_s,
  array(select w::bigint from jsonb_array_elements_text(r.waits::jsonb) with ordinality as w (w, no)
    order by w.no),
  array(select w::bigint from jsonb_array_elements_text(r.runs::jsonb) with ordinality as w (w, no)
    order by w.no),
  array(select w::bigint from jsonb_array_elements_text(r.ends::jsonb) with ordinality as w (w, no)
    order by w.no)
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
  $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
  $13::float8[], $14::float8[], $15::text[], $16::text[], $17::text[]) as r (
    queue, func, succeeded, failed, retried, crashed, rescued, cancelled, expired, snoozed, released,
    stale, wait_s, run_s, waits, runs, ends)
