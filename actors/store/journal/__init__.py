"""The journal: its bytes, the writer of its segments, and what reads them again."""
