"""Benchmarks of `millpond bench`: loads on a server, checks of its answers, and results."""
