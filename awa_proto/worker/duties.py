"""The duties of a leader: what each is, how often, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from awa_proto.store import Forgotten
from awa_proto.store.upkeep import KeptFor, Probe, Pruned, Rotation
from awa_proto.worker.context import Context
from awa_proto.worker.cron import Cron
from awa_proto.worker.report import INFO
from awa_proto.worker.rescue import rescues
from awa_proto.worker.upkeep import Duty

BATCH: Final = 1000
"""Most rows that one run of a duty deletes; the next one follows at once."""
SWEEP_EVERY: Final = 20.0
SWEPT: Final = 5000
ROTATE_EVERY: Final = 15.0
PRUNE_EVERY: Final = 30.0
PROBE_EVERY: Final = 10.0
CLEAN_EVERY: Final = 60.0
HELD_EVERY: Final = 600.0
HOURLY: Final = 3600.0
FORGOTTEN_AFTER: Final = 30 * 86400.0
"""Seconds after which a kind that no worker runs is forgotten."""


def duties(context: Context, rescued: Callable[[tuple[int, int]], None]) -> list[Duty]:
    """All of them. rescued: see `rescues`."""
    store, retention = context.store, context.config.retention

    def rotated(rotation: Rotation, now: float) -> None:
        if rotation.is_full:
            context.report.warn(
                now, "ring full", "no segment is free; the open one grows until one can be emptied", quiet=CLEAN_EVERY
            )
        else:
            context.report.recovered("ring full", "a segment could be emptied")

    def probed(probe: Probe, _: float) -> None:
        if probe.revived:
            context.report.tell(INFO, "segments revived", "jobs came late into segments", segments=list(probe.revived))

    def pruned(answer: Pruned, now: float) -> float | None:
        held = [kept.segment for kept in answer.kept if kept.reason is not KeptFor.BUSY]
        if held:
            context.report.warn(
                now, "segments held", "running attempts or a long backlog hold segments that are past their time",
                quiet=HELD_EVERY, segments=held,
            )  # fmt: skip
        elif not answer.more:
            context.report.recovered("segments held", "segments past their time could be emptied")
        return 0.0 if answer.more else None

    def rebased(was_elsewhere: bool, _: float) -> None:
        if was_elsewhere:
            context.report.tell(INFO, "restored dump", "a dump of another cluster was rebased")

    walked = b""

    def forgot(answer: Forgotten, _: float) -> float | None:
        """A page a minute, all around: a key that is left is only some bytes. Pages of which much is left follow at once."""
        nonlocal walked
        walked = answer.last or b""
        return 0.0 if answer.keys * 10 >= BATCH else None

    return [
        Duty("cluster", HELD_EVERY, store.rebase, rebased),
        Cron(context).duty(),
        Duty("sweep", SWEEP_EVERY, lambda: store.sweep(SWEPT), _nothing_more),
        Duty("probe", PROBE_EVERY, store.probe, probed),
        Duty("rotate", ROTATE_EVERY, lambda: store.rotate(retention.completed), rotated),
        Duty("prune", PRUNE_EVERY, lambda: store.prune(retention.completed), pruned),
        *rescues(context, rescued),
        Duty("dead letters", CLEAN_EVERY, lambda: store.prune_dlq(retention.dead_letters, BATCH), _whole(BATCH)),
        Duty("completed rows", CLEAN_EVERY, lambda: store.prune_completed(retention.completed, BATCH), _whole(BATCH)),
        Duty("failed jobs", CLEAN_EVERY, lambda: store.prune_failed(retention.failed, BATCH), _whole(BATCH)),
        Duty("attempts", CLEAN_EVERY, lambda: store.prune_attempts(BATCH), _whole(BATCH)),
        Duty("kinds", HOURLY, lambda: store.prune_kinds(FORGOTTEN_AFTER), _nothing_more),
        Duty("unique keys", CLEAN_EVERY, lambda: store.forget_keys(BATCH, walked), forgot),
    ]


def _nothing_more(_: object, _now: float) -> None:
    """It did all there was to do."""


def _whole(most: int) -> Callable[[Any, float], float | None]:
    """Again at once when a statement did as much as it may."""
    return lambda done, _now: 0.0 if done >= most else None
