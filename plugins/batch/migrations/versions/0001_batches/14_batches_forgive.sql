-- Takes the end of a replay of a failed job of a batch. p_root: the job whose dead letter was replayed.
-- One that succeeds makes the failed job one that has succeeded, once.
-- Index: the primary keys. Locks: the row of the job that was replayed first; then as batches_count.
-- Safe to repeat.
create function {schema}.batches_forgive(p_id uuid, p_job uuid, p_state smallint, p_root uuid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_root uuid;
  v_was smallint;
begin
  select coalesce(m.root, m.job_id) into v_root
  from {schema}.batches_jobs m where m.batch_id = p_id and m.job_id = p_root;
  select m.state into v_was
  from {schema}.batches_jobs m where m.batch_id = p_id and m.job_id = v_root for update;
  if not found then
    return;
  end if;
  if p_state = 4 then
    delete from {schema}.batches_jobs m where m.batch_id = p_id and m.job_id = v_root;
    if v_was = 0 then
      perform {schema}.batches_count(p_id, 1, 1, 0, 0);
    elsif v_was = 5 then
      perform {schema}.batches_count(p_id, 0, 1, -1, 0);
    else
      perform {schema}.batches_count(p_id, 0, 1, 0, -1);
    end if;
    return;
  end if;
  insert into {schema}.batches_jobs (batch_id, job_id, state, root) values (p_id, p_job, 7, v_root)
  on conflict do nothing;
end
$$
