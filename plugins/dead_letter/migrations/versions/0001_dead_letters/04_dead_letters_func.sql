-- Truncated: a path that was written by hand may be longer than an index entry allows.
create index dead_letters_func on {schema}.dead_letters (left(func, 255), died_at, id)
