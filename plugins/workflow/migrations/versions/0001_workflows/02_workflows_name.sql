create index workflows_name on {schema}.workflows (name, id)
