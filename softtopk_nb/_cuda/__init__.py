"""Arrays on a device, and the parts that kernels for it are built from."""
