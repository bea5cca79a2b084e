-- The order in which jobs became pending. cache 1: a larger cache would assign positions out of
-- order across sessions.
create sequence {schema}.positions cache 1
