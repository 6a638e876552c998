"""Job queues on a node: `queue` puts jobs, `task` and `worker` run them (docs/guides/jobs.md)."""
