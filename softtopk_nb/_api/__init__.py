"""The front door: arguments checked, arrays as rows and back, for the host and for a device."""
