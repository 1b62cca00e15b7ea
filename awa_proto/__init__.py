"""The core of awa: no I/O, no clock, no randomness of its own, no async, no threads.

What is exported here is what the packages `awa_asyncio`, `awa_trio` and `awa_sync` export too, beside what each has of
its own: Client, Worker, Transaction, Tasks, Job and BlockingJob.
"""

from awa_proto import events
from awa_proto.args import JobArgs
from awa_proto.blocking import BlockingClient
from awa_proto.callbacks.operations import Resolution
from awa_proto.callbacks.token import CallbackToken
from awa_proto.cron.job import CronJob
from awa_proto.errors import (
    AttemptEnded,
    AwaError,
    CallbackNotFound,
    ConfigurationError,
    CronJobNotFound,
    DatabaseError,
    Failure,
    JobNotFound,
    OutputError,
    SchemaNotMigrated,
    SerializationError,
    StagingError,
    TerminalError,
    UniqueConflict,
    UnknownJobKind,
    ValidationError,
    WaitCancelled,
)
from awa_proto.events import JobEvent, RescueReason
from awa_proto.followup import FollowUpError
from awa_proto.health import Health, WorkerHealth
from awa_proto.job import JobPage, JobRow, JobState
from awa_proto.options import EnqueueRequest, InsertOpts
from awa_proto.outcome import Cancel, Completed, DeadLetter, Result, RetryAfter, Snooze, WaitForCallback
from awa_proto.retention import Retention
from awa_proto.store import KindInfo, QueueStat
from awa_proto.unique import UniqueOpts
from awa_proto.worker.config import Liveness, QueueConfig
from awa_proto.worker.events import Stopped

__all__ = [
    "AttemptEnded",
    "AwaError",
    "BlockingClient",
    "CallbackNotFound",
    "CallbackToken",
    "Cancel",
    "Completed",
    "ConfigurationError",
    "CronJob",
    "CronJobNotFound",
    "DatabaseError",
    "DeadLetter",
    "EnqueueRequest",
    "Failure",
    "FollowUpError",
    "Health",
    "InsertOpts",
    "JobArgs",
    "JobEvent",
    "JobNotFound",
    "JobPage",
    "JobRow",
    "JobState",
    "KindInfo",
    "Liveness",
    "OutputError",
    "QueueConfig",
    "QueueStat",
    "RescueReason",
    "Resolution",
    "Result",
    "Retention",
    "RetryAfter",
    "SchemaNotMigrated",
    "SerializationError",
    "Snooze",
    "StagingError",
    "Stopped",
    "TerminalError",
    "UniqueConflict",
    "UniqueOpts",
    "UnknownJobKind",
    "ValidationError",
    "WaitCancelled",
    "WaitForCallback",
    "WorkerHealth",
    "events",
]
