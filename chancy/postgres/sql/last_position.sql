-- The last position that was drawn; null if there is none. No index, no locks. Safe to repeat.
select pg_sequence_last_value('{schema}.positions')
