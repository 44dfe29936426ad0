"""The mask of the k largest, on the CPU."""
