"""Work shared among threads: the pool, its jobs, and long rows in parts."""
