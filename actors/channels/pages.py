"""What a LIST asks for (P2P-13, PA-03 to PA-05)."""

from __future__ import annotations

import msgspec

from millpond.actors.messages import U64_MAX, List


class ListRange(msgspec.Struct, frozen=True, gc=False):
    """Ids from `low` to `high`, both inclusive. `limit` None: as many as the server gives."""

    low: int
    high: int
    limit: int | None
    newest_first: bool

    @staticmethod
    def asked(request: List, *, cursors: bool) -> ListRange:
        """Read a LIST: end 0 is open, start above end is newest first, limit 0 the server's page.

        With `cursors` (tag 0b = 1) both ends are exclusive, and limit 0 means nothing at all.
        """
        start, end = request.start, request.end
        newest_first = start > end if end else start == U64_MAX
        if newest_first:
            low, high = end, start
        else:
            low, high = start, end or U64_MAX
        if cursors:
            return ListRange(low + 1, high - 1, request.limit, newest_first)
        return ListRange(low, high, request.limit or None, newest_first)
