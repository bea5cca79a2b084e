-- What nobody has replayed, which is what one asks for.
create index dead_letters_waiting on {schema}.dead_letters (died_at, id)
where replayed_at is null
