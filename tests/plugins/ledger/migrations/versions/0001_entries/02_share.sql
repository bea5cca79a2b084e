-- With what an engine might take for its own: a colon, a cast, per cents, braces.
create function {schema}.ledger_share(p_part int) returns text
language sql
as $$ select format('%s%% {of} 12:30', (p_part::numeric / 2)::text || ' in ' || {schema_text}) $$;
