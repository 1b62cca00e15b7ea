"""What a worker says and asks besides claiming: who it is, which segments there are, how its queues are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from awa_proto.errors import DatabaseError, Failure, not_migrated
from awa_proto.plan import Op, Plan, Statement
from awa_proto.schema import latest, refuse_newer
from awa_proto.store import QueueSettings, Registration, Ring, WorkerInfo
from awa_proto.store.queue.home import canonical_is_open
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.rebase import elsewhere


def _survey(n: Names, queues: Sequence[str], *, glance: bool = False) -> Plan[tuple[Ring, dict[str, QueueSettings]]]:
    """The segments that hold work or take it, oldest first, with the version they belong to, and the settings of the queues.

    The version comes from the open segment's own row, so a ring that changes meanwhile is reported by the next claim as
    newer.
    """
    rows = yield Statement(
        f"survey{'.glance' if glance else ''}",
        f"""
SELECT version, segments, {_used(n) if glance else _held(n)}, queues, stripes, paused
FROM (SELECT max(version) FILTER (WHERE state = 'open') * 256 + max(seg) FILTER (WHERE state = 'open') AS version,
             array_agg(seg ORDER BY version, seg) AS segments
      FROM {n.s}.segments WHERE state <> 'free' AND NOT quiet) ring
CROSS JOIN (SELECT array_agg(queue) AS queues, array_agg(stripes) AS stripes, array_agg(paused_at IS NOT NULL) AS paused
            FROM {n.s}.queues WHERE queue = ANY ($1::text[])) settings""",
        (list(queues),),
    )
    version, segments, canonical, *settings = rows[0]
    said = zip(*(column or () for column in settings), strict=True)
    return Ring(version, tuple(segments), canonical), {
        queue: QueueSettings(stripes, paused) for queue, stripes, paused in said
    }


def _held(n: Names) -> str:
    """SQL: whether canonical storage has work of the queues $1; while it takes new jobs, whether it was ever used."""
    if n.canonical:  # its own workers look there anyway
        return "false"
    return f"""(
  {canonical_is_open(n)} AND (
    (SELECT id FROM {n.s}.jobs_hot ORDER BY id LIMIT 1) IS NOT NULL   -- EXISTS would drop the order and read the table
    OR (SELECT id FROM {n.s}.scheduled_jobs ORDER BY id LIMIT 1) IS NOT NULL)
  OR EXISTS (SELECT FROM unnest($1::text[]) q CROSS JOIN LATERAL (
       (SELECT FROM {n.s}.jobs_hot j WHERE j.state = 1 AND j.queue = q ORDER BY j.queue, j.stripe LIMIT 1)
       UNION ALL
       (SELECT FROM {n.s}.scheduled_jobs s WHERE s.queue = q ORDER BY s.queue, s.run_at LIMIT 1)) held))"""


def _used(n: Names) -> str:
    """SQL: whether the tables of canonical storage have ever held a row. Asks the file system, and reads none."""
    if n.canonical:
        return "false"
    sizes = (f"pg_relation_size({n.text(table)}::regclass)" for table in ("jobs_hot", "scheduled_jobs"))
    return f"{' + '.join(sizes)} > 0"


def survey(n: Names, queues: Sequence[str], *, glance: bool) -> Op[tuple[Ring, Mapping[str, QueueSettings]]]:
    """The segments and the settings of the queues as they are now. glance: without a look into canonical storage.

    That look is atomic, so that it is READ COMMITTED: a serializable one makes others fail for it.
    """
    is_atomic = not (n.canonical or glance)
    return Op("survey", lambda: _survey(n, queues, glance=glance), atomic=is_atomic, safe_to_retry=True)


def register(n: Names, worker: WorkerInfo) -> Op[Registration]:
    """Introduce a worker. Raises SchemaNotMigrated unless the schema is that of this code.

    Its failure is RESTORED in a dump of another cluster, until that is rebased.
    """

    def plan() -> Plan[Registration]:
        try:
            versions = yield Statement("version", f"SELECT coalesce(max(version), 0)::int FROM {n.s}.migrations")
        except DatabaseError as error:
            if error.failure is Failure.NOT_MIGRATED:
                raise not_migrated(n.schema) from error
            raise
        refuse_newer(n.schema, versions[0][0])
        if versions[0][0] < latest():
            raise not_migrated(n.schema)
        moved = yield elsewhere(n)
        if moved[0][0]:
            restored = DatabaseError("this is a dump of another cluster, which is to be rebased first", "55000")
            restored.failure = Failure.RESTORED
            raise restored
        ring, settings = yield from _survey(n, worker.queues)
        rows = yield Statement(
            "register",
            f"INSERT INTO {n.s}.instances (hostname, pid, version, queues)"
            " VALUES ($1::text, $2::int, $3::text, $4::text[]) RETURNING id, clock_timestamp()",
            (worker.hostname, worker.pid, worker.version, list(worker.queues)),
        )
        instance, now = rows[0]
        return Registration(instance, ring, settings, now)

    return Op("register", plan, atomic=True)


def unregister(n: Names, instance: int) -> Op[None]:
    """A worker left in good order."""

    def plan() -> Plan[None]:
        yield Statement("unregister", f"DELETE FROM {n.s}.instances WHERE id = $1::bigint", (instance,))

    return Op("unregister", plan, safe_to_retry=True)


def replan() -> Op[None]:
    """Plans made anew. One that was made when a log was empty, and was believed to be, reads all of it when it is full."""

    def plan() -> Plan[None]:
        yield Statement("replan", "DISCARD PLANS")

    return Op("replan", plan, safe_to_retry=True)
