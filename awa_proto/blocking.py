"""BlockingClient: what a plain handler on an async package enqueues and reads with, from its thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, TypeVar

from awa_proto.binding import bind
from awa_proto.operations import Operations
from awa_proto.plan import Op

T = TypeVar("T")

if TYPE_CHECKING:
    Calls = Operations[Never]
else:
    Calls = Operations


class BlockingClient:
    """The calls of a client for a thread of its worker: each one waits while the client's event loop does it.

    No `transaction()`, whose connection lives in the loop, and no `using=`: what belongs together is one `insert_many`.
    No `worker` or `run` either: it is in one.

    operations: those of the client. perform: carries out an Op on the client's loop and waits; called from threads.
    """

    def __init__(self, operations: Operations[Any], perform: Callable[[Op[Any]], Any]) -> None:
        self.operations = operations
        self._perform = perform

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op."""
        result: T = self._perform(op)
        return result

    insert = bind(Calls.insert)
    insert_many = bind(Calls.insert_many)
    enqueue_many = bind(Calls.enqueue_many)
    get_job = bind(Calls.get_job)
    list_jobs = bind(Calls.list_jobs)
    cancel = bind(Calls.cancel)
    cancel_by_unique_key = bind(Calls.cancel_by_unique_key)
    retry = bind(Calls.retry)
    list_dlq = bind(Calls.list_dlq)
    get_dlq_job = bind(Calls.get_dlq_job)
    dlq_depth = bind(Calls.dlq_depth)
    retry_from_dlq = bind(Calls.retry_from_dlq)
    retry_all_from_dlq = bind(Calls.retry_all_from_dlq)
    move_to_dlq = bind(Calls.move_to_dlq)
    move_failed_to_dlq = bind(Calls.move_failed_to_dlq)
    purge_dlq_job = bind(Calls.purge_dlq_job)
    purge_dlq = bind(Calls.purge_dlq)
    retry_failed = bind(Calls.retry_failed)
    discard_failed = bind(Calls.discard_failed)
    delete_job = bind(Calls.delete_job)
    drain_queue = bind(Calls.drain_queue)
    queue_stats = bind(Calls.queue_stats)
    list_kinds = bind(Calls.list_kinds)
    pause_queue = bind(Calls.pause_queue)
    resume_queue = bind(Calls.resume_queue)
    set_stripes = bind(Calls.set_stripes)
    list_cron_jobs = bind(Calls.list_cron_jobs)
    get_cron_job = bind(Calls.get_cron_job)
    put_cron_job = bind(Calls.put_cron_job)
    edit_cron_job = bind(Calls.edit_cron_job)
    pause_cron_job = bind(Calls.pause_cron_job)
    resume_cron_job = bind(Calls.resume_cron_job)
    trigger_cron_job = bind(Calls.trigger_cron_job)
    delete_cron_job = bind(Calls.delete_cron_job)
    complete_external = bind(Calls.complete_external)
    fail_external = bind(Calls.fail_external)
    retry_external = bind(Calls.retry_external)
    resume_external = bind(Calls.resume_external)
    heartbeat_callback = bind(Calls.heartbeat_callback)
    resolve_callback = bind(Calls.resolve_callback)
    migrate = bind(Calls.migrate)
