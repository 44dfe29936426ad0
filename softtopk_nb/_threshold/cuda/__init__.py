"""On a device."""
