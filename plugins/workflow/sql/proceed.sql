-- Starts one piece of the steps that settlements have left; gives whether there was one; see the function.
-- Index: the primary keys. Locks: one workflow by sharing, its piece. Safe to repeat.
select {schema}.workflows_proceed()
