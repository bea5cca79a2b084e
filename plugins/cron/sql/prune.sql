-- Deletes all but the newest $2 ticks of the named entries, at most 1,000 of each; the next call
-- deletes the rest. Index: the primary key of cron_ticks. Locks: those rows, skipping locked
-- ones. Safe to repeat.
delete from {schema}.cron_ticks as t
where t.ctid = any(array(
  select o.ctid
  from unnest($1::text[]) as n (name)
  cross join lateral (
    select k.ctid
    from {schema}.cron_ticks as k
    where k.entry = n.name
    order by k.tick desc, k.manual desc
    offset $2::int
    limit 1000
    for update skip locked) as o))
