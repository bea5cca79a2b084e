-- Returns a UUIDv7: milliseconds, the fraction of the millisecond in 12 bits (RFC 9562, method 3),
-- and 62 random bits. The ids of one session are in order of creation, except within the same
-- quarter of a microsecond.
create function {schema}.new_id() returns uuid
language sql volatile parallel safe
set search_path = pg_catalog, pg_temp
begin atomic
  select encode(
    int8send(t.us / 1000 << 16 | 28672 | t.us % 1000 * 4096 / 1000)
      || substring(uuid_send(gen_random_uuid()) from 9),
    'hex')::uuid
  from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as us) as t;
end
