-- Cut: a path that somebody wrote by hand may be longer than an index takes.
create index dead_letters_func on {schema}.dead_letters (left(func, 255), died_at, id)
