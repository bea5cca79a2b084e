create index dead_letters_purged_died on {schema}.dead_letters_purged (died_at)
