"""The trio driver of awa-queue."""

try:
    import trio as _trio  # noqa: F401  so that what is missing is named first
except ImportError as error:
    raise ImportError("awa_trio needs trio: pip install 'awa-queue[trio]'") from error

import awa_proto as _proto
from awa_proto import *  # noqa: F403  its __all__ is the shared part of ours
from awa_trio.client import Client, Transaction
from awa_trio.job import BlockingJob, Job
from awa_trio.tasks import Tasks
from awa_trio.worker import Worker

__all__ = ["BlockingJob", "Client", "Job", "Tasks", "Transaction", "Worker"]
__all__ += _proto.__all__
