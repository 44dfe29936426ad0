"""The handlers that XLA calls in machine code, by operator: from arrays of a frame to kernels.

A handler returns whether it has done the call. If not, Python does all of it again: for numbers
that are invalid or not moderate, and for rows that need a kernel that is not compiled yet.
"""
