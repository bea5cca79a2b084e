-- Whether the database is as its template again. Deletes few rows and truncates long tables: no
-- dead rows pile up.
create function recycling.clean() returns boolean language plpgsql as $$
declare
  v_table record;
begin
  if (select is_called from recycling.changes)
    or exists (select from pg_statistic where starelid >= 16384)
    or exists (select from pg_largeobject_metadata)
    or exists (select from pg_prepared_xacts where database = current_database())
    or exists (select from pg_replication_slots where database = current_database())
    or exists (
      select from pg_database d
      where d.datname = current_database()
        and (d.datacl is not null or d.datconnlimit <> -1
          or exists (select from pg_db_role_setting where setdatabase = d.oid)))
  then
    return false;
  end if;
  for v_table in
    select t.*, t.copy is null and (c.reltuples > 0 or c.relpages > 0 or s.size > 65536) as long
    from recycling.tables t
    join pg_class c on c.oid = t.name
    cross join lateral (select pg_relation_size(t.name) as size offset 0) s
    where s.size > 0 or t.copy is null and (c.reltuples > 0 or c.relpages > 0)
    -- A truncation may reach tables whose rows are then copied.
    order by long desc
  loop
    if v_table.long then
      execute 'truncate ' || v_table.name || ' cascade';
      continue;
    end if;
    execute 'delete from only ' || v_table.name;
    if v_table.copy is not null then
      execute format('insert into %s (%s) overriding system value select %s from %s',
        v_table.name, v_table.columns, v_table.columns, v_table.copy);
    end if;
  end loop;
  perform setval(name, value, called) from recycling.sequences;
  perform pg_stat_reset();
  return true;
end
$$;

create function recycling.note() returns event_trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$ begin perform nextval('recycling.changes'); end $$;

-- The last statement: those before it are not noted.
create event trigger recycling on ddl_command_end execute function recycling.note();
