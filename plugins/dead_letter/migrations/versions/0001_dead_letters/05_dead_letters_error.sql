create index dead_letters_error on {schema}.dead_letters (error, died_at, id)
