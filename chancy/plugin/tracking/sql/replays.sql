-- Whether a plugin supplies the function replays_of, which returns the replays of a failed job.
-- Index: none. No locks. Safe to repeat.
select to_regprocedure('{schema}.replays_of(uuid)') is not null
