-- Records the outcomes of replays of failed jobs of batches: those with a p_roots (the job whose
-- dead letter was replayed) that is not null. A replay that succeeds turns the failed job into a
-- succeeded one, once. Returns what this adds to the counts; the caller counts it.
-- Index: the primary key. Locks: the rows of the replayed jobs, by batch and job. Safe to repeat.
-- Called by batches_settle alone, whose settings also apply here.
create function {schema}.batches_forgive(
  p_batches uuid[], p_jobs uuid[], p_states smallint[], p_roots uuid[]
) returns {schema}.batches_counts[]
language plpgsql
as $$
declare
  v_of record;
  v_was smallint;
  v_counts {schema}.batches_counts[] := '{}';
begin
  for v_of in
    select d.batch, d.job, d.state, coalesce(m.root, m.job_id) as root
    from unnest(p_batches, p_jobs, p_states, p_roots) as d (batch, job, state, root)
    join {schema}.batches_jobs m on m.batch_id = d.batch and m.job_id = d.root
    order by d.batch, coalesce(m.root, m.job_id), d.state desc, d.job
  loop
    select m.state into v_was
    from {schema}.batches_jobs m
    where m.batch_id = v_of.batch and m.job_id = v_of.root for update;
    if not found then
      continue;
    elsif v_of.state = 4 then
      delete from {schema}.batches_jobs m where m.batch_id = v_of.batch and m.job_id = v_of.root;
      v_counts := v_counts || row(v_of.batch, (v_was = 0)::int, 1, -(v_was = 5)::int,
        -(v_was = 6)::int)::{schema}.batches_counts;
    else
      insert into {schema}.batches_jobs (batch_id, job_id, state, root)
      values (v_of.batch, v_of.job, 7, v_of.root)
      on conflict do nothing;
    end if;
  end loop;
  return v_counts;
end
$$
