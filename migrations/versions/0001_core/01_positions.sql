-- The order in which jobs became pending. cache 1: a larger cache would hand out positions out
-- of order across sessions.
create sequence {schema}.positions cache 1
