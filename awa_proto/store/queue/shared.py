"""What the stores of both engines say in the same words: the tables beside the logs are one for both, and so is the upkeep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from awa_proto.cron.job import CronJob, CronTemplate, Fire
from awa_proto.health import StoreHealth
from awa_proto.job import Attempt, DlqCursor, JobPage, JobRow
from awa_proto.plan import Op, Plan
from awa_proto.store import (
    Callback,
    Cancelled,
    Ended,
    ExpiredPage,
    Forgotten,
    JobFilter,
    KindInfo,
    NewJob,
    QueueStat,
    Registered,
    Selection,
    Verdicts,
    Wait,
    Waited,
)
from awa_proto.store.queue import (
    bulk,
    callbacks,
    cron,
    dead_letters,
    enqueue,
    health,
    kinds,
    leading,
    listening,
    lists,
    people,
    reads,
    rebase,
    retention,
    settings,
    stats,
    unique,
    workers,
)
from awa_proto.store.queue.names import Names
from awa_proto.store.upkeep import Leadership


class SharedStore:
    """One schema, seen from either engine.

    names: of the engine. random: floats in [0, 1), for spreading batches over stripes.
    Raises ValidationError when PostgreSQL cannot have a schema of that name.
    """

    def __init__(self, names: Names, random: Callable[[], float]) -> None:
        _ = names.s  # refuses what cannot be, before anything else is made of it
        self._names = names
        self._random = random
        self.channel = names.channel

    def insert(self, jobs: Sequence[NewJob], *, notify: bool = True, skip: bool = False) -> Op[list[JobRow]]:
        return enqueue.insert(self._names, jobs, notify, self._random, skip)

    def copy(self, jobs: Iterable[NewJob], *, notify: bool = True, skip: bool = False) -> Op[int]:
        return enqueue.copy(self._names, jobs, notify, self._random, skip)

    def unregister(self, instance: int) -> Op[None]:
        return workers.unregister(self._names, instance)

    def tell_ended(self, attempts: Sequence[Attempt]) -> Op[None]:
        return listening.tell_ended(self._names, attempts)

    def replan(self) -> Op[None]:
        return workers.replan()

    def announce(self, queues: Sequence[str], held: Sequence[str] = ()) -> Op[None]:
        return listening.announce(self._names, queues, held)

    def withdraw(self) -> Op[int | None]:
        return listening.withdraw()

    def echo(self, payload: str) -> Op[None]:
        return listening.echo(self._names, payload)

    # callbacks

    def find_expired(self, limit: int) -> Op[ExpiredPage]:
        return callbacks.find_expired(self._names, limit)

    def register_callback(
        self, attempt: Attempt, timeout: float, expressions: str | None, before: str | None = None
    ) -> Op[Registered | None]:
        return callbacks.register(self._names, attempt, timeout, expressions, before)

    def find_callback(self, id: str) -> Plan[Callback | None]:
        return callbacks.find(self._names, id)

    def find_waiting(self, id: int) -> Plan[Callback | None]:
        return callbacks.find_waiting(self._names, id)

    def end_called(self, ended: Ended, flush: int) -> Plan[Verdicts]:
        return callbacks.end(self._names, ended, flush)

    def resume(self, callback: Callback, result: str) -> Plan[bool]:
        return callbacks.resume(self._names, callback, result)

    def heartbeat_callback(self, callback: Callback, timeout: float) -> Plan[datetime | None]:
        return callbacks.heartbeat(self._names, callback, timeout)

    def wait(self, waits: Sequence[Wait]) -> Op[list[Waited]]:
        return callbacks.wait(self._names, waits)

    def leave(self, waits: Sequence[Wait]) -> Op[list[int]]:
        return callbacks.leave(self._names, waits)

    # jobs, which are looked for in both engines

    def get_job(self, id: int) -> Op[JobRow | None]:
        return reads.get_job(self._names, id)

    def list_jobs(self, filter: JobFilter) -> Op[JobPage[int]]:
        return lists.list_jobs(self._names, filter)

    def cancel(self, id: int) -> Op[Cancelled]:
        return people.cancel(self._names, id, int(self._random() * 2**62))

    def retry(self, id: int) -> Op[JobRow | None]:
        return people.retry(self._names, id)

    def move(self, id: int, *, queue: str | None = None, priority: int | None = None) -> Op[Cancelled]:
        return people.move(self._names, id, queue, priority)

    def delete_job(self, id: int) -> Op[bool]:
        return people.delete_job(self._names, id)

    def holder(self, key: bytes) -> Op[int | None]:
        return unique.holder(self._names, key)

    def forget_keys(self, limit: int, after: bytes = b"") -> Op[Forgotten]:
        return unique.forget_keys(self._names, limit, after)

    def retry_failed(self, which: Selection) -> Op[int]:
        return bulk.retry_failed(self._names, which)

    def discard_failed(self, which: Selection) -> Op[int]:
        return bulk.discard_failed(self._names, which)

    def drain_queue(self, queue: str) -> Op[int]:
        return bulk.drain_queue(self._names, queue, int(self._random() * 2**62))

    # dead letters

    def list_dlq(self, which: Selection, *, limit: int, before: DlqCursor | None = None) -> Op[JobPage[DlqCursor]]:
        return dead_letters.list_dlq(self._names, which, limit, before)

    def dlq_depth(self, queue: str | None = None) -> Op[int]:
        return dead_letters.dlq_depth(self._names, queue)

    def retry_from_dlq(self, id: int, run_at: datetime | None = None) -> Op[JobRow | None]:
        return dead_letters.retry_from_dlq(self._names, id, run_at)

    def retry_all_from_dlq(self, which: Selection) -> Op[int]:
        return dead_letters.retry_all_from_dlq(self._names, which)

    def move_to_dlq(self, id: int) -> Op[JobRow | None]:
        return dead_letters.move_to_dlq(self._names, id)

    def move_failed_to_dlq(self, which: Selection) -> Op[int]:
        return dead_letters.move_failed_to_dlq(self._names, which)

    def purge_dlq_job(self, id: int) -> Op[bool]:
        return dead_letters.purge_dlq_job(self._names, id)

    def purge_dlq(self, which: Selection) -> Op[int]:
        return dead_letters.purge_dlq(self._names, which)

    # queues

    def queue_stats(self) -> Op[list[QueueStat]]:
        return stats.queue_stats(self._names)

    def pause_queue(self, queue: str, by: str | None) -> Op[None]:
        return settings.pause_queue(self._names, queue, by)

    def resume_queue(self, queue: str) -> Op[None]:
        return settings.resume_queue(self._names, queue)

    def set_stripes(self, queue: str, stripes: int) -> Op[None]:
        return settings.set_stripes(self._names, queue, stripes)

    # upkeep, which is of both engines, whichever the worker is of that does it

    def lead(self, instance: int, lease: float) -> Op[Leadership]:
        return leading.lead(self._names, instance, lease)

    def resign(self, instance: int) -> Op[None]:
        return leading.resign(self._names, instance)

    def rebase(self, *, thorough: bool = False) -> Op[bool]:
        return rebase.rebase(self._names, thorough=thorough)

    def prune_dlq(self, older_than: float, limit: int) -> Op[int]:
        return retention.prune_dlq(self._names, older_than, limit)

    def prune_completed(self, older_than: float, limit: int) -> Op[int]:
        return retention.prune_completed(self._names, older_than, limit)

    def prune_failed(self, older_than: float, limit: int) -> Op[int]:
        return retention.prune_failed(self._names, older_than, limit)

    def prune_attempts(self, limit: int) -> Op[int]:
        return retention.prune_attempts(self._names, limit)

    def put_kinds(self, descriptors: Mapping[str, str]) -> Op[None]:
        return kinds.put_kinds(self._names, descriptors)

    def list_kinds(self) -> Op[list[KindInfo]]:
        return kinds.list_kinds(self._names)

    def prune_kinds(self, older_than: float) -> Op[int]:
        return kinds.prune_kinds(self._names, older_than)

    def put_cron(self, templates: Sequence[CronTemplate], *, declared: bool) -> Op[int]:
        return cron.put(self._names, templates, declared=declared)

    def list_cron(self, name: str | None = None) -> Op[tuple[datetime, list[CronJob]]]:
        return cron.list_cron(self._names, name)

    def pass_fires(self, fires: Sequence[Fire]) -> Plan[list[str]]:
        return cron.pass_fires(self._names, fires)

    def pause_cron(self, name: str, by: str | None) -> Op[bool]:
        return cron.pause_cron(self._names, name, by)

    def resume_cron(self, name: str) -> Op[bool]:
        return cron.resume_cron(self._names, name)

    def edit_cron(self, name: str, changes: Mapping[str, Any]) -> Op[bool]:
        return cron.edit_cron(self._names, name, changes)

    def delete_cron(self, name: str) -> Op[bool]:
        return cron.delete_cron(self._names, name)

    def health(self) -> Op[StoreHealth]:
        return health.health(self._names)
