-- Commits a message that nothing reads: so it waits until the synchronous standby, if there is one,
-- has confirmed the commits before it. No index, no locks. Safe to repeat.
select pg_logical_emit_message(true, 'chancy', ''::text)::text
