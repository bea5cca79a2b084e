-- Sends one notification on a channel. Safe to repeat.
select pg_notify($1::text, $2::text)
