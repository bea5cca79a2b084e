-- Refuses what the Python side would refuse to push: see chancy.names and chancy.intake. The
-- message contains the parameter, its value, and the allowed values. Accesses no table.
create function {schema}.check_push(
  p_queue text, p_func text, p_arguments jsonb, p_priority int, p_max_attempts int, p_meta jsonb
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_wrong text := case
    when p_queue is null or p_queue !~ '^[A-Za-z0-9_.:/-]{1,128}$' then
      format('queue %L cannot be the name of a queue: use 1 to 128 of the characters '
        'A-Z a-z 0-9 _ . : / -', left(p_queue, 160))
    when p_func is null or char_length(p_func) > 255 or starts_with(p_func, '__main__.')
      or p_func !~ E'^[A-Za-z_\\u0080-\\uffff][\\w\\u0080-\\uffff]*([.][A-Za-z_\\u0080-\\uffff][\\w\\u0080-\\uffff]*)+$'
    then
      format('func %L is not the path of a function: write package.module.function, of 255 '
        'characters at most', left(p_func, 300))
    when p_arguments is null or jsonb_typeof(p_arguments) <> 'object' then
      format('arguments must be a JSON object of keyword arguments, not %s',
        coalesce(jsonb_typeof(p_arguments), 'null'))
    when octet_length(p_arguments::text) > 1048576 then
      format('arguments take %s bytes as JSON, the limit is 1048576: store the data elsewhere '
        'and pass a reference', octet_length(p_arguments::text))
    when p_priority is null or p_priority not between -100 and 100 then
      format('priority %s must be a whole number from -100 to 100',
        coalesce(p_priority::text, 'null'))
    when p_max_attempts is null or p_max_attempts not between 1 and 10000 then
      format('max_attempts %s must be a whole number from 1 to 10000',
        coalesce(p_max_attempts::text, 'null'))
    when jsonb_typeof(p_meta) <> 'object' then
      format('meta must be a JSON object, not %s', jsonb_typeof(p_meta))
    when octet_length(p_meta::text) > 1048576 then
      format('meta takes %s bytes as JSON, the limit is 1048576', octet_length(p_meta::text))
    when p_meta ? 'hold' and (
      jsonb_typeof(p_meta -> 'hold') <> 'string' or p_meta ->> 'hold' !~ '^.{1,200}$')
    then
      format('meta: hold %s must be a string of 1 to 200 characters', left(p_meta ->> 'hold', 250))
  end;
begin
  if v_wrong is not null then
    raise exception 'push: %', v_wrong using errcode = 'invalid_parameter_value';
  end if;
end
$$
