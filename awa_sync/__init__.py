"""The blocking driver of awa-queue."""

import awa_proto as _proto
from awa_proto import *  # noqa: F403  its __all__ is the shared part of ours
from awa_sync.client import Client, Transaction
from awa_sync.job import BlockingJob, Job
from awa_sync.tasks import Tasks
from awa_sync.worker import Worker

__all__ = ["BlockingJob", "Client", "Job", "Tasks", "Transaction", "Worker"]
__all__ += _proto.__all__
