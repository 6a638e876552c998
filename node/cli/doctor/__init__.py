"""`millpond doctor`: checks, and repairs of damaged partitions."""
