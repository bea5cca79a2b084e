-- Whether the claim of the job gives its unique key back. Null, as for all that have none: no.
alter table {schema}.jobs add column unique_until_claim boolean
