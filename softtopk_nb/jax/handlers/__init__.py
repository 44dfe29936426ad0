"""What XLA calls in machine code, operator by operator: arrays of a frame to kernels.

A handler says whether it has done the call. Where it has not, Python does all of it again: numbers
that are not right or not moderate, and rows that want a kernel that is not compiled yet.
"""
