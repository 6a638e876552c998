"""The actor runtime and the actors: cells, their scheduler, channels and the store."""
