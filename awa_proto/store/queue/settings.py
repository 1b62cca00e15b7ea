"""What people say about a queue: paused or not, and in how many stripes it is kept."""

from __future__ import annotations

from awa_proto.errors import ValidationError
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store.queue.names import Names


def pause_queue(n: Names, queue: str, by: str | None) -> Op[None]:
    """No claim takes from the queue until it is resumed."""

    def plan() -> Plan[None]:
        yield Statement(
            "pause_queue",
            f"INSERT INTO {n.s}.queues (queue, paused_at, paused_by) VALUES ($1::text, clock_timestamp(), $2::text)"
            " ON CONFLICT (queue) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by",
            (queue, by),
        )

    return Op("pause_queue", plan, safe_to_retry=True)


def resume_queue(n: Names, queue: str) -> Op[None]:
    """Claims take from the queue again; sleeping workers are told."""

    def plan() -> Plan[None]:
        rows = yield Statement(
            "resume_queue",
            f"UPDATE {n.s}.queues SET paused_at = NULL, paused_by = NULL"
            " WHERE queue = $1::text AND paused_at IS NOT NULL RETURNING queue",
            (queue,),
        )
        if rows:
            yield Statement("resume.tell", f"SELECT {n.notify('$1::text')}", (queue,))

    return Op("resume_queue", plan, safe_to_retry=True)


def set_stripes(n: Names, queue: str, stripes: int) -> Op[None]:
    """Keep new jobs of the queue in so many stripes. Only upwards: rows beyond the number would never be claimed."""

    def plan() -> Plan[None]:
        rows = yield Statement(
            "set_stripes",
            f"INSERT INTO {n.s}.queues AS q (queue, stripes) VALUES ($1::text, $2::smallint)"
            " ON CONFLICT (queue) DO UPDATE SET stripes = greatest(q.stripes, excluded.stripes) RETURNING stripes",
            (queue, stripes),
        )
        if rows[0][0] > stripes:
            raise ValidationError("stripes", f"queue {queue!r} has {rows[0][0]} already, and can only have more")

    return Op("set_stripes", plan, safe_to_retry=True)
