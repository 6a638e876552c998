"""QR codes: as the path of an SVG image, and as lines of text for a terminal."""

from __future__ import annotations

from itertools import groupby

QUIET = 2
"""The light modules around a code. Readers take fewer than the four of the standard, and a
terminal has 80 columns."""


def qr_path(text: str) -> tuple[int, str]:
    """The size of an image, and its path: dark modules are squares of one unit."""
    rows = _rows(text)
    parts: list[str] = []
    for y, row in enumerate(rows):
        x = 0
        for is_dark, group in groupby(row):
            length = len(list(group))
            if is_dark:
                parts.append(f"M{x} {y}h{length}v1h-{length}z")
            x += length
    return len(rows), "".join(parts)


def qr_lines(text: str) -> list[str]:
    """Lines of half blocks, two modules high: a space is light, as terminals with a light
    background show it; the caller prints them dark on light."""
    rows = _rows(text)
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    blocks = {
        (False, False): " ",
        (True, False): "\u2580",
        (False, True): "\u2584",
        (True, True): "\u2588",
    }
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return ["".join(blocks[each] for each in zip(*pair, strict=True)) for pair in pairs]


def _rows(text: str) -> list[list[bool]]:
    import segno  # only invites need it

    code = segno.make(text, error="l", micro=False, boost_error=False)
    return [[bool(each) for each in row] for row in code.matrix_iter(border=QUIET)]
