"""Blocking clients, written by scripts/generate_sync.py; `portal` has their event loop."""
