"""Jobs: what a channel in queue mode does for them beyond messages (docs/guides/jobs.md)."""
