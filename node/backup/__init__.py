"""Backups of a whole node: made while it runs, verified, and restored. `node` and `node.cli` import
it."""
