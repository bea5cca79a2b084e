-- The role, and whether it sees the transactions of other roles. Reads catalogs. No locks. Safe to
-- repeat.
select current_user::text, pg_has_role(current_user, 'pg_read_all_stats', 'usage')
