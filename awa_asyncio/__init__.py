"""The asyncio driver of awa-queue."""

import awa_proto as _proto
from awa_asyncio.client import Client, Transaction
from awa_asyncio.job import BlockingJob, Job
from awa_asyncio.tasks import Tasks
from awa_asyncio.worker import Worker
from awa_proto import *  # noqa: F403  its __all__ is the shared part of ours

__all__ = ["BlockingJob", "Client", "Job", "Tasks", "Transaction", "Worker"]
__all__ += _proto.__all__
