"""Several brokers as one."""
