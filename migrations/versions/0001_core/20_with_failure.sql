-- Appends an error to the errors of a job and keeps the last 25, with the seconds for which the
-- attempt waited, from p_due until p_claimed, and ran; null if one of these times is infinite.
-- Accepts any value of the column.
-- The function has no settings of its own, so that it is inlined: the statement of every completion
-- uses it.
create function {schema}.with_failure(
  p_errors jsonb, p_failure text, p_attempt int, p_worker uuid, p_due timestamptz,
  p_claimed timestamptz
) returns jsonb
language sql volatile
return case
  when p_failure is null then p_errors
  else case
    when jsonb_typeof(p_errors) is distinct from 'array' then '[]'
    when jsonb_array_length(p_errors) >= 25 then p_errors - 0
    else p_errors
  end || jsonb_build_array(p_failure::jsonb || jsonb_build_object(
    'attempt', p_attempt,
    'worker_id', p_worker,
    'waited_s', case
      when isfinite(p_due) and isfinite(p_claimed)
      then round(extract(epoch from p_claimed - p_due), 3)
    end,
    'ran_s', case
      when isfinite(p_claimed) then round(extract(epoch from clock_timestamp() - p_claimed), 3)
    end,
    'at', to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
end
