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
