"""Catalogs of streams: topics, basins and access tokens."""
