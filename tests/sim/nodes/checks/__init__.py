"""Checks of a history: each module finds one kind of broken promise."""
