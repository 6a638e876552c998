"""Repair of damaged partition files: what is readable is kept, the rest is quarantined.

The store at its start and `millpond doctor` import it.
"""
