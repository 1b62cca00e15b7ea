"""When the database turns out to be a dump of another cluster, it is rebased; until then nothing can be claimed.

Whoever found out, registration or a claim, tries again by itself, as after any failure.
"""

from __future__ import annotations

from typing import Final

from awa_proto.errors import DatabaseError
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane

QUIET: Final = 60.0


def rebase(context: Context, now: float) -> None:
    """Have it rebased, unless that is under way."""
    if context.is_rebasing:
        return
    context.is_rebasing = True
    context.report.warn(now, "restored dump", "this is a dump of another cluster: it is rebased first", quiet=QUIET)

    def done(_: bool, _now: float) -> None:
        context.is_rebasing = False
        context.report.recovered("restored dump", "the dump of another cluster is rebased")
        context.report.recovered("rebase failed", "the dump of another cluster is rebased")

    def failed(error: DatabaseError, now: float) -> None:
        context.is_rebasing = False
        context.last_error = error
        context.report.warn(now, "rebase failed", "the dump of another cluster could not be rebased", error=str(error))

    context.lanes.run(Lane.MAINTENANCE, context.store.rebase(thorough=True), done, failed)
