-- The year 1970 means that nothing has declared or changed the row yet: see declare.sql.
insert into {schema}.queues (name, updated_at) values ('default', to_timestamp(0))
