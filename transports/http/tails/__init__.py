"""The tails of many streams in one request, for readers that follow them (docs/reference/s2.md)."""
