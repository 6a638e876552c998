"""Commands of `millpond` that need one module each."""
