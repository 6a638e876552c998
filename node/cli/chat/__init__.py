"""`millpond chat`."""
