"""Rustlog."""
