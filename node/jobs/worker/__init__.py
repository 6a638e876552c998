"""The worker of job queues: leases, handlers, completion."""
