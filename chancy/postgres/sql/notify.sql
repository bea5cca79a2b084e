-- Sends one notice on the channel of the schema. Safe to repeat.
select pg_notify($1::text, $2::text)
