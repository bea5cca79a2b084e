-- A timestamp that every client can represent: without time zone, in UTC, within the years 1 to
-- 9999.
create function {schema}.utc(p_at timestamptz) returns timestamp
language sql immutable parallel safe
return case
  when p_at is not null then least(
    greatest(p_at at time zone 'UTC', timestamp '0001-01-01'),
    timestamp '9999-12-31 23:59:59.999999')
end
