"""States of streams over HTTP: JSON, and server-sent events (docs/state.md)."""
