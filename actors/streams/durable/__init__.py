"""Durable."""
