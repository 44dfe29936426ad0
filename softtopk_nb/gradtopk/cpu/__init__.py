"""Marginals of random subsets, on the CPU."""
