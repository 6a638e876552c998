"""`millpond stream`, and the parts that `millpond topic` shares."""
