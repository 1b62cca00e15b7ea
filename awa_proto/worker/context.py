"""What every component of the machine is given: the store, the settings, and the ways to ask, to wait and to tell."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from awa_proto.errors import DatabaseError
from awa_proto.followup import FollowUps
from awa_proto.store import Store
from awa_proto.worker.clock import DatabaseClock
from awa_proto.worker.config import WorkerConfig
from awa_proto.worker.happened import Hooked
from awa_proto.worker.heartbeat import Living
from awa_proto.worker.lanes import Lanes
from awa_proto.worker.report import Report
from awa_proto.worker.tally import Tally
from awa_proto.worker.timers import Timers


@dataclass(slots=True)
class Context:
    """Shared by the components of one worker.

    random: floats in [0, 1), the only source of chance. follow_ups: those registered for the kinds of this worker.
    tally: what is counted. last_error: the newest failure, for health. living: what the heartbeat and the worker tell each
    other.
    is_rebasing: a dump of another cluster is made right. kinds: those this worker has a handler for; None when it does not say.
    unknown_kinds: those it has met as the leader and does not know, so that their hooks and follow-ups are not run here.
    """

    store: Store
    config: WorkerConfig
    random: Callable[[], float]
    lanes: Lanes
    timers: Timers
    report: Report
    clock: DatabaseClock
    hooked: Hooked
    follow_ups: FollowUps
    tally: Tally
    last_error: DatabaseError | None = None
    is_rebasing: bool = False
    living: Living = field(default_factory=Living)
    kinds: Collection[str] | None = None
    unknown_kinds: dict[str, None] = field(default_factory=dict[str, None])
