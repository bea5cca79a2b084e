insert into {schema}.queues (name) values ('default')
