-- Starts one piece of the steps that settlements have left; returns whether there was one; see the
-- function.
-- Index: the primary keys. Locks: one workflow in share mode, its piece. Safe to repeat.
select {schema}.workflows_proceed()
