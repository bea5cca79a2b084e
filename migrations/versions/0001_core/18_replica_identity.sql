-- The tables without a primary key: if a publication has them, deletes need an identity. They write
-- more for it with wal_level = logical only.
alter table {schema}.finished_jobs replica identity full;
alter table {schema}.finished_jobs_default replica identity full;
alter table {schema}.recently_finished replica identity full;
alter table {schema}.recently_finished_0 replica identity full;
alter table {schema}.recently_finished_1 replica identity full;
alter table {schema}.recently_finished_2 replica identity full
