"""The threshold search on a device."""
