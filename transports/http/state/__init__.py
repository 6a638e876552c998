"""States of streams over HTTP: JSON, and server-sent events (docs/reference/state.md)."""
