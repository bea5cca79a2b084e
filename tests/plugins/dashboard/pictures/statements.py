"""What the staged database holds beside the jobs that workers have run."""

#: Spreads failures over the day: the same time in both tables, or the sweep repairs one of them.
AGE = {
    table: f"""
update chancy.{table} t set
  {column} = v.at,
  pushed_at = v.at - interval '9 s'{claimed},
  errors = jsonb_set(t.errors, '{{-1,at}}', to_jsonb(v.at))
from (
  select
    u.id,
    greatest(
      date_trunc('day', $1::timestamptz, 'utc'),
      $1::timestamptz - mod(abs(hashtext(u.id::text)), 1000) * interval '70 s') as at
  from chancy.{table} u where u.errors is not null) v
where v.id = t.id"""
    for table, column, claimed in (
        ("finished_jobs", "finished_at", ", claimed_at = v.at - interval '0.4 s'"),
        ("dead_letters", "died_at", ""),
    )
}
PENDING = """
insert into chancy.jobs (id, pos, state, queue, func, arguments, pushed_at, max_attempts)
select gen_random_uuid(), 1000000 + n, 0, 'mail', 'shop.mail.send_receipt',
  jsonb_build_object('order', 7000 + n, 'to', 'ann' || n || '@example.com', 'password', 'x'),
  clock_timestamp() - interval '25 min' + n * interval '50 ms', 5
from generate_series(1, 20000) n"""
WORKERS = """
insert into chancy.workers (
  id, host, pid, tags, queues, broken, unknown, version, started_at, blocked_s, memory_bytes,
  stop_asked_at)
values
  (gen_random_uuid(), 'worker-2.shop.internal', 4711, '{gpu=none}', '{billing,feeds}',
   '{"feeds": "its rules need a later version of chancy"}', '{shop.mail.send_gift}', '0.1',
   clock_timestamp() - interval '3 days', 2.4, 431000000, null),
  (gen_random_uuid(), 'a-worker-with-a-very-long-host-name-7d9f8b6c4-xk2lp.shop.svc.cluster.local',
   1, '{}', '{search}', '{}', '{}', '0.1', clock_timestamp() - interval '2 hours', 0,
   3300000000, clock_timestamp() - interval '20 s')"""
#: Keeps these workers alive, one of them hardly.
BEAT = """
update chancy.workers
set beat_at = clock_timestamp() - case pid when 1 then interval '12 s' else interval '1 s' end
where pid in (1, 4711)"""
AUDIT = """
insert into chancy.dashboard_audit (
  at, who, action, subject, detail, jobs, ended_at, error)
select clock_timestamp() - v.ago * interval '1 minute', v.who, v.action, v.subject,
  v.detail::jsonb, v.jobs, case when v.ended then clock_timestamp() end, v.error
from (values
  (3000, 'eve', 'pause queue', 'queue:billing', null, 0, true, null),
  (2990, 'eve', 'resume queue', 'queue:billing', null, 0, true, null),
  (400, 'olaf', 'change queue', 'queue:mail', '{"concurrency": 8, "before": 32}', 0, true, null),
  (70, 'eve', 'purge dead letters', 'queue:feeds', '{"fingerprint": "5f1c"}', 4120, true,
   'DeadlockDetected: the database was asked for two things at once, and gave neither of them'),
  (2, 'margarethe.von.hohenstein@shop.example.com', 'replay dead letters', 'queue:billing',
   '{"fingerprint": "9c3f", "rate": 50}', 1500, false, null),
  (1, 'eve', 'pause queue', 'queue:mail', null, 0, true, null))
  as v (ago, who, action, subject, detail, jobs, ended, error)"""
METRICS = """
insert into chancy.metrics
select u.step,
  date_bin(u.step * interval '1 s', clock_timestamp() - u.n * u.step * interval '1 s', 'epoch'),
  u.queue, u.func, u.ok, u.failed, u.retried, 0, 0, 0, 0, 0, 0, 0,
  u.waits::bigint[], u.waits::bigint[]
from unnest($1::int[], $2::int[], $3::text[], $4::text[], $5::bigint[], $6::bigint[],
  $7::bigint[], $8::text[]) as u (step, n, queue, func, ok, failed, retried, waits)"""
