"""Errors of schemas and of the values that they describe."""

from __future__ import annotations

from millpond.actors.errors import MillpondError


class BadSchema(MillpondError, ValueError):
    """The schema cannot be used; the text says where and why."""


class DuplicateType(MillpondError, ValueError):
    """Two collections have one type (V1)."""


class BadValue(MillpondError, ValueError):
    """A value does not fit the schema of its type; nothing was written."""
