-- external: to try to compress random ids takes longer than to store them.
do $$
begin
  alter table {schema}.recently_finished alter column ids set storage external;
  for v_slot in 0 .. 2 loop
    execute format(
      'create table {schema}.recently_finished_%s partition of {schema}.recently_finished'
      ' for values in (%s)', v_slot, v_slot);
  end loop;
end
$$
