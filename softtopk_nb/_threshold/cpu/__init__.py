"""The search for a threshold, on the CPU."""
