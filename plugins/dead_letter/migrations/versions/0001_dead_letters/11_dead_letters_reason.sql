-- Returns in one word why a job is a dead letter, from its last failure. Accepts any value of the
-- column.
create function {schema}.dead_letters_reason(p_errors jsonb) returns text
language sql immutable
return case
  when p_errors -> -1 -> 'types' ? 'chancy.Lost' then 'crashed'
  when p_errors -> -1 -> 'types' ? 'chancy.TimedOut' then 'timed_out'
  when p_errors -> -1 -> 'types' ? 'chancy.MemoryExceeded' then 'memory_exceeded'
  when p_errors -> -1 -> 'types' ? 'chancy.errors.InvalidArguments' then 'invalid_arguments'
  when p_errors -> -1 -> 'types' ? 'chancy.errors.UnknownFunction' then 'unknown_function'
  when p_errors -> -1 -> 'types' ? 'chancy.errors.UnsupportedLimit' then 'unsupported_limit'
  else 'failed'
end
