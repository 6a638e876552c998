"""Partition files: an SQLite file for each channel or stream, and their catalog."""
