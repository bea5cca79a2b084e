create index dead_letters_died on {schema}.dead_letters (died_at, id)
