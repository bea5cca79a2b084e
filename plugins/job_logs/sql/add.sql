-- Stores lines, given as columns in their order, of jobs whose earlier lines have less than $6 bytes;
-- a line counts 32 bytes more than its text. Index: the primary key, backwards, once for each job. No
-- locks. Not safe to repeat: the lines would be there twice.
with new as (
  select n.job_id, n.at, n.attempt, n.level, n.line, n.place,
    octet_length(n.line) + 32 as size,
    sum(octet_length(n.line) + 32) over (partition by n.job_id order by n.place) as size_so_far
  from unnest($1::uuid[], $2::float8[], $3::int[], $4::smallint[], $5::text[])
    with ordinality as n (job_id, at, attempt, level, line, place)),
stored as (
  select j.job_id, coalesce((
      select l.total
      from {schema}.job_logs as l
      where l.job_id = j.job_id
      order by l.number desc
      limit 1), 0) as total
  from (select distinct n.job_id from new as n) as j)
insert into {schema}.job_logs (job_id, at, attempt, level, total, line)
select n.job_id, to_timestamp(n.at), n.attempt, n.level, s.total + n.size_so_far, n.line
from new as n
join stored as s on s.job_id = n.job_id
where s.total + n.size_so_far - n.size < $6::int
order by n.place
