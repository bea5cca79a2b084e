-- Refuses invalid uniqueness rules, in the same way as {schema}.check_push. Accesses no table.
create function {schema}.check_unique(
  p_key text, p_scope text, p_until text, p_period interval, p_on_conflict text
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_wrong text := case
    when char_length(p_key) not between 1 and 255 then
      format('unique_key has %s characters: it may have 1 to 255', char_length(p_key))
    when p_scope is null or p_scope not in ('function', 'queue', 'global') then
      format('unique_scope %L must be function, queue or global', p_scope)
    when p_until is null or p_until not in ('finished', 'started') then
      format('unique_until %L must be finished or started', p_until)
    when p_on_conflict is null or p_on_conflict not in ('skip', 'replace', 'raise') then
      format('on_conflict %L must be skip, replace or raise', p_on_conflict)
    when p_on_conflict = 'replace' and p_scope <> 'function' then
      'on_conflict replace needs unique_scope function: the other job may be of another function'
    when p_period <= interval '0' or p_period > interval '3660 days' then
      format('unique_period %L must be over 0 and at most 3660 days', p_period)
  end;
begin
  if v_wrong is not null then
    raise exception 'push: %', v_wrong using errcode = 'invalid_parameter_value';
  end if;
end
$$
