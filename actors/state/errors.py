"""Errors of schemas and of the values that they describe."""

from __future__ import annotations


class BadSchema(ValueError):
    """The schema cannot be used; the text says where and why."""


class DuplicateType(ValueError):
    """Two collections have one type (V1)."""


class BadValue(ValueError):
    """A value does not fit the schema of its type; nothing was written."""
