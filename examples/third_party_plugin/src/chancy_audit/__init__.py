"""An audit of jobs that failed or were cancelled."""
