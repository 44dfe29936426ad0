"""Softmax, its logarithm and its potential, on the CPU."""
