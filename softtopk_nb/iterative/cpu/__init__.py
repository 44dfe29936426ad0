"""Successive softmax steps, on the CPU."""
