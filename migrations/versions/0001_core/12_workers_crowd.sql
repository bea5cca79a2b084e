-- Serves surveys: the workers that serve the same queues, by id.
create index workers_crowd on {schema}.workers (crowd, id)
