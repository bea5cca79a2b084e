create index dead_letters_queue on {schema}.dead_letters (queue, died_at, id)
