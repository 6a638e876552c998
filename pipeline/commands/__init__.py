"""The commands of `millpond pipeline`."""
