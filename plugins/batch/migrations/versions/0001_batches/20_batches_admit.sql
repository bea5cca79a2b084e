-- Returns whether this transaction may add jobs to a batch, from one of its jobs while that job
-- runs (p_job, under p_lease), or without a job while the batch is open; and the number of jobs it
-- has, without those that concurrent transactions add. Results: more; lost (the lease is gone),
-- over (the batch has ended, or was asked to stop, or the job no longer counts), closed, unknown.
-- The batch cannot end meanwhile: the job counts as pending until it ends, and its row is locked
-- until the transaction ends; a transaction that closes an open batch waits for the row of the
-- batch.
-- Index: the primary keys. Locks: the row of the job, or of the batch, shared. Safe to repeat.
create function {schema}.batches_admit(p_id uuid, p_job uuid, p_lease uuid)
returns table (said text, jobs bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_batch {schema}.batches;
begin
  if p_job is not null then
    perform from {schema}.jobs j
    where j.id = p_job and j.lease = p_lease and j.state = 1 for share;
    if not found then
      return query select 'lost', 0::bigint;
      return;
    end if;
  end if;
  select * into v_batch from {schema}.batches b where b.id = p_id;
  if p_job is null and v_batch.open then
    select * into v_batch from {schema}.batches b where b.id = p_id for share;
  end if;
  return query select case
      when v_batch.id is null then 'unknown'
      when v_batch.state <> 1 or v_batch.stop_asked_at is not null then 'over'
      when p_job is null and not v_batch.open then 'closed'
      when p_job is not null and not exists (select from {schema}.batches_jobs m
        where m.batch_id = p_id and m.job_id = p_job and m.state = 0) then 'over'
      else 'more'
    end,
    coalesce((select sum(s.pending + s.succeeded + s.failed + s.cancelled)
      from {schema}.batches_shards s where s.batch_id = p_id), 0)
    + coalesce((select sum(a.jobs) from {schema}.batches_added a where a.batch_id = p_id), 0);
end
$$
