"""What a worker says and asks besides claiming: who it is, which segments there are, how its queues are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from awa_proto.errors import not_migrated
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.schema import latest, refuse_newer
from awa_proto.store import QueueSettings, Registration, Ring, WorkerInfo
from awa_proto.store.queue.names import Names


def _ring(n: Names) -> Statement:
    """The segments that may hold work, oldest first, with the version they belong to.

    The version is read before the rows can change: it comes from the open segment's own row, so a ring that changes
    meanwhile is reported by the next claim as newer.
    """
    return Statement(
        "ring",
        f"SELECT max(version) FILTER (WHERE state = 'open') * 256 + max(seg) FILTER (WHERE state = 'open'),"
        f" array_agg(seg ORDER BY version, seg) FROM {n.s}.segments WHERE state <> 'free'",
    )


def _settings(n: Names, queues: Sequence[str]) -> Statement:
    return Statement(
        "settings",
        f"SELECT queue, stripes, paused_at IS NOT NULL FROM {n.s}.queues WHERE queue = ANY ($1::text[])",
        (list(queues),),
    )


def _read(ring: Rows, settings: Rows) -> tuple[Ring, dict[str, QueueSettings]]:
    version, segments = ring[0]
    return Ring(version, tuple(segments)), {
        queue: QueueSettings(stripes, paused) for queue, stripes, paused in settings
    }


def survey(n: Names, queues: Sequence[str]) -> Op[tuple[Ring, Mapping[str, QueueSettings]]]:
    """The segments and the settings of the queues as they are now."""

    def plan() -> Plan[tuple[Ring, Mapping[str, QueueSettings]]]:
        ring, settings = yield (_ring(n), _settings(n, queues))
        return _read(ring, settings)

    return Op("survey", plan, safe_to_retry=True)


def register(n: Names, worker: WorkerInfo) -> Op[Registration]:
    """Introduce a worker. Raises SchemaNotMigrated unless the schema is that of this code."""

    def plan() -> Plan[Registration]:
        versions = yield Statement("version", f"SELECT coalesce(max(version), 0)::int FROM {n.s}.migrations")
        refuse_newer(n.schema, versions[0][0])
        if versions[0][0] < latest():
            raise not_migrated(n.schema)
        rows, ring, settings = yield (
            Statement(
                "register",
                f"INSERT INTO {n.s}.instances (hostname, pid, version, queues)"
                " VALUES ($1::text, $2::int, $3::text, $4::text[]) RETURNING id, clock_timestamp()",
                (worker.hostname, worker.pid, worker.version, list(worker.queues)),
            ),
            _ring(n),
            _settings(n, worker.queues),
        )
        instance, now = rows[0]
        return Registration(instance, *_read(ring, settings), now)

    return Op("register", plan, safe_to_retry=True)


def unregister(n: Names, instance: int) -> Op[None]:
    """A worker left in good order."""

    def plan() -> Plan[None]:
        yield Statement("unregister", f"DELETE FROM {n.s}.instances WHERE id = $1::bigint", (instance,))

    return Op("unregister", plan, safe_to_retry=True)
