-- Without a primary key, deletes need an identity if a publication has the table.
alter table {schema}.metrics replica identity full
