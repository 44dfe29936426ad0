"""What kernels for a device are made of, and arrays on a device."""
