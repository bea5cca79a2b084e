-- The sum of lists of counts, place by place.
create aggregate {schema}.metrics_sum (bigint[]) (
  sfunc = {schema}.metrics_add, stype = bigint[], initcond = '{}')
