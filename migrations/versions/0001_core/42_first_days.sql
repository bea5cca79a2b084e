select {schema}.make_days(7)
