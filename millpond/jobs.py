"""Job queues: `Queue` puts jobs, `task` and `Worker` run them (docs/guides/jobs.md).

Programs without an event loop use `millpond.sync.Queue`.
"""

from millpond.node.jobs.connector import ConnectionOptions
from millpond.node.jobs.errors import (
    AttemptTimedOut,
    HandlersHang,
    JobCancelled,
    JobFailed,
    LeaseExpired,
    Reject,
    Retry,
)
from millpond.node.jobs.flow import FlowInfo, FlowStepInfo, FlowSummary, Step, chain, join
from millpond.node.jobs.handle import Handle
from millpond.node.jobs.history import HistoryEntry
from millpond.node.jobs.job import Job
from millpond.node.jobs.limits import Limits, QueueState, RateLimit
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.records import JobProgress
from millpond.node.jobs.requests import JobInfo, JobState, QueueCounts
from millpond.node.jobs.schedules import ScheduleInfo, Timing
from millpond.node.jobs.selection import JobFilter, WorkerInfo, WorkerJob
from millpond.node.jobs.task import Backoff, BoundTask, Task, batch_task, task
from millpond.node.jobs.worker.executor import Middleware, Next
from millpond.node.jobs.worker.outcome import AttemptResult, WorkerStats
from millpond.node.jobs.worker.worker import Worker

__all__ = [
    "AttemptResult",
    "AttemptTimedOut",
    "Backoff",
    "BoundTask",
    "ConnectionOptions",
    "FlowInfo",
    "FlowStepInfo",
    "FlowSummary",
    "Handle",
    "HandlersHang",
    "HistoryEntry",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobFilter",
    "JobInfo",
    "JobProgress",
    "JobState",
    "LeaseExpired",
    "Limits",
    "Middleware",
    "Next",
    "Queue",
    "QueueCounts",
    "QueueState",
    "RateLimit",
    "Reject",
    "Retry",
    "ScheduleInfo",
    "Step",
    "Task",
    "Timing",
    "Worker",
    "WorkerInfo",
    "WorkerJob",
    "WorkerStats",
    "batch_task",
    "chain",
    "join",
    "task",
]
