"""The threshold construction, on the CPU."""
