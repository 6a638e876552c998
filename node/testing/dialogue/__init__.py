"""Dialogues: requests and expected answers of a node as text, played against a node."""
