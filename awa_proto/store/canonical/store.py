"""The Store of canonical storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from awa_proto.job import Attempt
from awa_proto.plan import Op, Plan
from awa_proto.store import (
    Claimed,
    Demand,
    Ended,
    Place,
    Progress,
    Promoted,
    QueueSettings,
    Registration,
    Ring,
    StrandedPage,
    Verdicts,
    WorkerInfo,
)
from awa_proto.store.canonical import attempts, claim, claim_one, close, promote, rescue
from awa_proto.store.queue import QueueStore, parked, workers
from awa_proto.store.queue import claim_one as in_logs
from awa_proto.store.queue.attempts import record_progress
from awa_proto.store.queue.close import finalize
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.rescue import beat
from awa_proto.store.queue.shared import SharedStore
from awa_proto.store.upkeep import Probe, Pruned, Rotation

_NO_RING = Ring(0)


class CanonicalStore(SharedStore):
    """The Store of canonical storage in one schema.

    schema: its name. random: floats in [0, 1), for spreading batches over stripes.
    Raises ValidationError when PostgreSQL cannot have a schema of that name.
    """

    keeps_outputs = False

    def __init__(self, schema: str = "awa", *, random: Callable[[], float]) -> None:
        super().__init__(Names(schema, canonical=True), random)
        self._logs = QueueStore(schema, random=random)

    def register(self, worker: WorkerInfo) -> Op[Registration]:
        op = workers.register(self._names, worker)

        def plan() -> Plan[Registration]:
            registration = yield from op.start()
            return dataclasses.replace(registration, ring=_NO_RING)

        return dataclasses.replace(op, start=plan)

    def survey(self, queues: Sequence[str], *, glance: bool = False) -> Op[tuple[Ring, Mapping[str, QueueSettings]]]:
        op = workers.survey(self._names, queues, glance=glance)

        def plan() -> Plan[tuple[Ring, Mapping[str, QueueSettings]]]:
            _, said = yield from op.start()
            return _NO_RING, said

        return dataclasses.replace(op, start=plan)

    def claim(self, instance: int, ring: Ring, demands: Sequence[Demand], *, advance: bool = False) -> Op[Claimed]:  # noqa: ARG002  no logs, so nothing to walk over
        return claim.claim(self._names, instance, demands)

    def claim_one(
        self,
        instance: int,
        *,
        id: int | None = None,
        kind: str | None = None,
        queue: str | None = None,
        early: bool = False,
    ) -> Op[Claimed | None]:
        op = in_logs.claim_one(self._names, instance, id, kind, queue, early)

        def plan() -> Plan[Claimed | None]:
            here = yield from claim_one.claiming_one(self._names, instance, id, kind, queue, early)
            return here or (yield from op.start())

        return dataclasses.replace(op, start=plan)

    def record_progress(self, records: Sequence[Progress], *, patient: bool = False) -> Op[list[int]]:
        return record_progress(self._names, records, attempts.recording, patient=patient)

    def beat(self, instance: int, worker: WorkerInfo) -> Op[None]:
        return beat(self._names, instance, worker)

    def find_stale(self, silent: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        return self._logs.find_stale(silent, limit, after)

    def find_overdue(self, late: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        return self._logs.find_overdue(late, limit, after)

    def unknown(self, instance: int, known: Sequence[int], since: int) -> Op[list[Attempt]]:  # noqa: ARG002  one look finds all
        return rescue.unknown(self._names, instance, known)

    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        return finalize(self._names, ended, flush, close.finalizing, parked.finalizing)

    def promote(self, limit: int, since: datetime | None = None, *, canonical: Sequence[str] = ()) -> Op[Promoted]:  # noqa: ARG002  they are here
        return promote.promote(self._names, limit, since)

    # The logs, which the upkeep is of as well, whichever the worker is of that does it.

    def sweep(self, most: int = 5000) -> Op[int]:
        return self._logs.sweep(most)

    def rotate(self, retention: float | None = None, larger_than: int | None = None) -> Op[Rotation]:
        return self._logs.rotate(retention, larger_than)

    def probe(self) -> Op[Probe]:
        return self._logs.probe()

    def prune(self, retention: float) -> Op[Pruned]:
        return self._logs.prune(retention)
