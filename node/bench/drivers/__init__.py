"""Drivers of `millpond bench`: one for each protocol that a load speaks."""
