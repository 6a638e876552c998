"""The channel of clients that need none."""

from __future__ import annotations

PROBE = b"millpond!probe"
"""No message can be put there."""
