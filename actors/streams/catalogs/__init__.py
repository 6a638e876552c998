"""Catalogs."""
