"""Queue storage: the append-only engine. `docs/` tells why it is right; each module here is one statement family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

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
from awa_proto.store.canonical import attempts as canonical_attempts
from awa_proto.store.canonical import claim_one as canonical_claim_one
from awa_proto.store.canonical import close as canonical_close
from awa_proto.store.canonical import rescue as canonical_rescue
from awa_proto.store.queue import (
    attempts,
    claim,
    claim_one,
    close,
    parked,
    probe,
    promote,
    prune,
    rescue,
    rotate,
    sweep,
    takeover,
    workers,
)
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.shared import SharedStore
from awa_proto.store.upkeep import Probe, Pruned, Rotation


class QueueStore(SharedStore):
    """The Store of queue storage in one schema.

    schema: its name. random: floats in [0, 1), for spreading batches over stripes.
    Raises ValidationError when PostgreSQL cannot have a schema of that name.
    """

    keeps_outputs = True

    def __init__(self, schema: str = "awa", *, random: Callable[[], float]) -> None:
        super().__init__(Names(schema), random)

    def register(self, worker: WorkerInfo) -> Op[Registration]:
        return workers.register(self._names, worker)

    def survey(self, queues: Sequence[str], *, glance: bool = False) -> Op[tuple[Ring, Mapping[str, QueueSettings]]]:
        return workers.survey(self._names, queues, glance=glance)

    def claim(self, instance: int, ring: Ring, demands: Sequence[Demand], *, advance: bool = False) -> Op[Claimed]:
        if ring.canonical:
            return takeover.claim(self._names, instance, ring, demands, advance, self._random())
        return claim.claim(self._names, instance, ring, demands, advance)

    def claim_one(
        self,
        instance: int,
        *,
        id: int | None = None,
        kind: str | None = None,
        queue: str | None = None,
        early: bool = False,
    ) -> Op[Claimed | None]:
        op = claim_one.claim_one(self._names, instance, id, kind, queue, early)

        def plan() -> Plan[Claimed | None]:
            here = yield from op.start()
            return here or (yield from canonical_claim_one.claiming_one(self._names, instance, id, kind, queue, early))

        return dataclasses.replace(op, start=plan)

    def record_progress(self, records: Sequence[Progress], *, patient: bool = False) -> Op[list[int]]:
        return attempts.record_progress(self._names, records, canonical_attempts.recording, patient=patient)

    def beat(self, instance: int, worker: WorkerInfo) -> Op[None]:
        return rescue.beat(self._names, instance, worker)

    def find_stale(self, silent: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        here, there = (partial(find, self._names, silent) for find in (rescue.find_stale, canonical_rescue.find_stale))
        return takeover.stranded(here, there, limit, after)

    def find_overdue(self, late: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        here, there = (
            partial(find, self._names, late) for find in (rescue.find_overdue, canonical_rescue.find_overdue)
        )
        return takeover.stranded(here, there, limit, after)

    def unknown(self, instance: int, known: Sequence[int], since: int) -> Op[list[Attempt]]:
        return takeover.unknown(
            rescue.unknown(self._names, instance, known, since), canonical_rescue.unknown(self._names, instance, known)
        )

    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        return close.finalize(self._names, ended, flush, canonical_close.finalizing, parked.finalizing)

    def promote(self, limit: int, since: datetime | None = None, *, canonical: Sequence[str] = ()) -> Op[Promoted]:
        if canonical:
            return takeover.promote(self._names, limit, since, canonical)
        return promote.promote(self._names, limit, since)

    # the ring and its marks; the leader's work

    def sweep(self, most: int = 5000) -> Op[int]:
        """Note how far down the claims of each lane all is over; `most` claims of a lane in a statement."""
        return sweep.sweep(self._names, most)

    def open_next(self) -> Op[int | None]:
        """Seal the open segment and open a free one; `publish` is to follow."""
        return rotate.open_next(self._names)

    def publish(self) -> Op[None]:
        """Tell inserts which segment is open."""
        return rotate.publish(self._names)

    def rotate(self, retention: float | None = None, larger_than: int | None = None) -> Op[Rotation]:
        return rotate.rotate(self._names, retention, larger_than)

    def probe(self) -> Op[Probe]:
        return probe.probe(self._names)

    def prune(self, retention: float) -> Op[Pruned]:
        return prune.prune(self._names, retention)
