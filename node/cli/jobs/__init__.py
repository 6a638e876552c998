"""`millpond jobs` and `millpond work`."""
