"""Job queues on a node: `Queue` puts jobs, `task` and `Worker` run them (docs/guides/jobs.md)."""

from millpond.node.jobs.errors import JobCancelled, JobFailed, LeaseExpired, Reject, Retry
from millpond.node.jobs.handle import Handle
from millpond.node.jobs.job import Job
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.task import Backoff, Task, task
from millpond.node.jobs.worker.outcome import AttemptResult
from millpond.node.jobs.worker.worker import Worker

__all__ = [
    "AttemptResult",
    "Backoff",
    "Handle",
    "Job",
    "JobCancelled",
    "JobFailed",
    "LeaseExpired",
    "Queue",
    "Reject",
    "Retry",
    "Task",
    "Worker",
    "task",
]
