-- Files dead letters of events $1, an array of objects, unless they exist; see the function, which
-- the plugin of dead letters supplies. Locks: the inserted rows. Safe to repeat.
select {schema}.file_events($1::text::jsonb)
