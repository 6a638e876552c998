"""Dialogues with a node, written down as they are spoken, and played."""
