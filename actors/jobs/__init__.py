"""Jobs: requests to channels in queue mode beyond messages (docs/guides/jobs.md). Channels answer
them; transports know their messages."""
