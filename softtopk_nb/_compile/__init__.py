"""Compilation of functions, its disk cache, and arrays as the compiler should see them."""
