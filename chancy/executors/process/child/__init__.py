"""The code inside an executor process: one job after the other."""
