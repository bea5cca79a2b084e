-- Returns dead letters by ids, queue, function (or a pattern, with * and ?), type of error, time of
-- death (from, until, both inclusive), whether they were replayed, arguments that they contain, and
-- fingerprint; a null parameter does not filter. They are ordered by time of death, starting after
-- (p_at, p_id), or in the reverse order. Planned anew for each call, so that null conditions are
-- removed from the plan.
-- Index: the primary key, dead_letters_queue, _func, _error, _fingerprint, _waiting or _died. No
-- locks.
create function {schema}.dead_letters_page(
  p_ids uuid[], p_queue text, p_func text, p_error text, p_from timestamptz,
  p_until timestamptz, p_replayed boolean, p_where jsonb, p_fingerprint text,
  p_at timestamptz, p_id uuid, p_newest boolean, p_limit int
) returns setof {schema}.dead_letters
language plpgsql stable rows 500
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
as $$
begin
  if p_newest then
    return query
    select d.*
    from {schema}.dead_letters as d
    where (p_ids is null or d.id = any (p_ids))
      and (p_queue is null or d.queue = p_queue)
      and (p_func is null or case when p_func ~ '[*?]'
        then left(d.func, 255) like translate(replace(p_func, '_', '!_'), '*?', '%_') escape '!'
        else left(d.func, 255) = p_func end)
      and (p_error is null or d.error = p_error)
      and (p_from is null or d.died_at >= p_from)
      and (p_until is null or d.died_at <= p_until)
      and (p_replayed is distinct from true or d.replayed_at is not null)
      and (p_replayed is distinct from false or d.replayed_at is null)
      and (p_where is null or d.arguments @> p_where)
      and (p_fingerprint is null or d.fingerprint = p_fingerprint)
      and (p_at is null or (d.died_at, d.id) < (p_at, p_id))
    order by d.died_at desc, d.id desc
    limit p_limit;
  else
    return query
    select d.*
    from {schema}.dead_letters as d
    where (p_ids is null or d.id = any (p_ids))
      and (p_queue is null or d.queue = p_queue)
      and (p_func is null or case when p_func ~ '[*?]'
        then left(d.func, 255) like translate(replace(p_func, '_', '!_'), '*?', '%_') escape '!'
        else left(d.func, 255) = p_func end)
      and (p_error is null or d.error = p_error)
      and (p_from is null or d.died_at >= p_from)
      and (p_until is null or d.died_at <= p_until)
      and (p_replayed is distinct from true or d.replayed_at is not null)
      and (p_replayed is distinct from false or d.replayed_at is null)
      and (p_where is null or d.arguments @> p_where)
      and (p_fingerprint is null or d.fingerprint = p_fingerprint)
      and (p_at is null or (d.died_at, d.id) > (p_at, p_id))
    order by d.died_at, d.id
    limit p_limit;
  end if;
end
$$
