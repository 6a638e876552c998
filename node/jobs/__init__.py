"""Job queues on a node: `Queue` puts jobs, `task` and `Worker` run them (docs/jobs.md)."""

from node.jobs.errors import JobCancelled, JobFailed, LeaseExpired, Reject, Retry
from node.jobs.handle import Handle
from node.jobs.job import Job
from node.jobs.worker.outcome import Ended
from node.jobs.queue import Queue
from node.jobs.task import Backoff, Task, task
from node.jobs.worker.worker import Worker

__all__ = [
    "Backoff",
    "Ended",
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
