-- Removes ids from recently_finished; see the function. Index: none. Locks: a partition to which
-- nothing is written now. Safe to repeat.
select {schema}.forget_finished()
