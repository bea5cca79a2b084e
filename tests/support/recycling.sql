-- Added to each template: what empties a clone after a test, and notes what it cannot undo.
drop schema if exists recycling cascade;
create schema recycling;

-- Used by each statement that changes more than rows.
create sequence recycling.changes;

-- Tables without rows have no copy.
create table recycling.tables (name regclass primary key, copy text, columns text);
create table recycling.sequences (name regclass primary key, value bigint, called boolean);

do $$
declare
  v_table regclass;
  v_columns text;
  v_copy text;
begin
  for v_table in
    select c.oid::regclass from pg_class c
    where c.relkind = 'r' and c.oid >= 16384 and c.relnamespace <> 'recycling'::regnamespace
  loop
    v_copy := null;
    v_columns := null;
    if pg_relation_size(v_table) > 0 then
      v_copy := format('recycling.rows_%s', v_table::oid);
      select string_agg(quote_ident(attname), ', ' order by attnum) into v_columns
      from pg_attribute
      where attrelid = v_table and attnum > 0 and not attisdropped and attgenerated = '';
      execute format('create table %s as select %s from only %s', v_copy, v_columns, v_table);
    end if;
    insert into recycling.tables values (v_table, v_copy, v_columns);
  end loop;
  for v_table in
    select oid::regclass from pg_class
    where relkind = 'S' and oid >= 16384 and relnamespace <> 'recycling'::regnamespace
  loop
    execute format(
      'insert into recycling.sequences select %L, last_value, is_called from %s', v_table, v_table);
  end loop;
end
$$;

-- Whether the database is as its template again. Deletes few rows and truncates long tables: no
-- dead rows pile up.
create function recycling.clean() returns boolean language plpgsql as $$
declare
  v_table record;
  v_long text;
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
  select string_agg(t.name::text, ', ') into v_long
  from recycling.tables t
  join pg_class c on c.oid = t.name
  where t.copy is null and (c.reltuples > 0 or c.relpages > 0 or pg_relation_size(t.name) > 65536);
  if v_long is not null then
    execute 'truncate ' || v_long || ' cascade';
  end if;
  for v_table in select * from recycling.tables where pg_relation_size(name) > 0 loop
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

create event trigger recycling on ddl_command_end execute function recycling.note();
