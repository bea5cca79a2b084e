-- Adds two lists of counts, place by place.
create function {schema}.metrics_add(p_one bigint[], p_other bigint[]) returns bigint[]
language sql immutable parallel safe
return array(
  select coalesce(u.one, 0) + coalesce(u.other, 0)
  from unnest(p_one, p_other) with ordinality as u (one, other, place)
  order by u.place)
