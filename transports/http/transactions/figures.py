"""What happened to transactions since the node started."""

from __future__ import annotations

import msgspec


class TransactionCounters(msgspec.Struct):
    """Rows that were staged; batches that were published, whole, and their rows; batches that were
    published before and not again."""

    staged_rows: int = 0
    published: int = 0
    published_rows: int = 0
    duplicates: int = 0
