-- Dead letters that have not been replayed: the most frequent query.
create index dead_letters_waiting on {schema}.dead_letters (died_at, id)
where replayed_at is null
