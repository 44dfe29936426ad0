"""The threshold search on the CPU."""
