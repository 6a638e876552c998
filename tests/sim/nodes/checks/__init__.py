"""Judges of a history: each looks for one kind of broken promise."""
