-- Whether the table of dead letters exists. Index: none. No locks. Safe to repeat.
select to_regclass('{schema}.dead_letters') is not null
