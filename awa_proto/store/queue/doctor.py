"""Doctor: the ring as it is, and who keeps it from being as it should be. Reads only; for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store.queue.names import LOGS, Names
from awa_proto.store.queue.prune import backlog_sql
from awa_proto.store.queue.rebase import elsewhere
from awa_proto.store.queue.sweep import open_claims

SILENT = 60.0
"""Seconds without a beat after which a worker is mentioned."""
LONG = 300.0
"""Seconds after which an open transaction is mentioned."""


@dataclass(frozen=True, slots=True)
class Session:
    """An open transaction. name: `pid 7 (psql, idle in transaction)` or `prepared transaction 'x'`; age: seconds."""

    name: str
    age: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment. age: seconds since it was opened. size: bytes with indexes.

    running: attempts that have not ended, the oldest for so many seconds. waiting: jobs nobody has claimed, up to 5,001.
    used_by: open transactions that have touched its tables, and keep it from being emptied.
    """

    number: int
    state: str
    quiet: bool
    age: float | None
    size: int
    running: int = 0
    oldest: float = 0.0
    waiting: int = 0
    used_by: tuple[Session, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What there is to know.

    restored: this is a dump of another cluster that was not rebased. leader: the worker that leads, None when none does.
    silent: workers that beat no more, and for how many seconds. waiting: jobs that wait for a callback, up to 10,000. late: for
    how many seconds the one whose time is up the longest was not rescued. transactions: the oldest open ones, longest first.
    """

    segments: tuple[Segment, ...]
    restored: bool
    leader: int | None
    workers: int
    silent: Mapping[int, float]
    transactions: tuple[Session, ...]
    waiting: int = 0
    late: float = 0.0

    @property
    def problems(self) -> list[str]:
        """What somebody should look at, a sentence each."""
        found = []
        if self.restored:
            found.append("This is a dump of another cluster; the next worker that starts makes it right.")
        if not any(segment.state == "free" for segment in self.segments):
            found.append("No segment is free: completed jobs are kept longer, and the open segment grows.")
        for segment in self.segments:
            if segment.state == "sealed" and segment.running and segment.oldest >= LONG:
                count = f"{segment.running} attempts, the oldest running for {segment.oldest:.0f} s"
                found.append(f"Segment {segment.number} is held by {count}.")
            if segment.state == "sealed":
                found += [
                    f"Segment {segment.number} is held by {user.name}, open for {user.age:.0f} s."
                    for user in segment.used_by
                    if user.age >= LONG
                ]
        if self.workers and self.leader is None:
            found.append("No worker leads: nothing is rescued, emptied or enqueued by cron.")
        found += [f"Worker {id} has been silent for {age:.0f} s." for id, age in self.silent.items()]
        if self.late >= SILENT:
            found.append(f"A callback has been late for {self.late:.0f} s, and its job was not rescued.")
        for each in self.transactions:
            if each.age >= LONG:
                found.append(f"The transaction of {each.name} is open for {each.age:.0f} s.")
        return found


@lru_cache
def _segments_sql(n: Names) -> str:
    size = " + ".join(f"pg_total_relation_size({n.of_segment(log, 's.seg')})" for log in LOGS)
    return f"""
SELECT s.seg, s.state, s.quiet, extract(epoch FROM clock_timestamp() - s.opened_at)::float8, ({size})::bigint
FROM {n.s}.segments s ORDER BY s.version DESC, s.seg"""


@lru_cache(maxsize=256)
def running_sql(n: Names, s: int) -> str:
    """How many attempts of a segment are open, and for how many seconds the oldest one."""
    return f"""
WITH RECURSIVE {open_claims(n, s)}
SELECT coalesce(sum(o.jobs - o.ended), 0)::int, coalesce(max(extract(epoch FROM clock_timestamp() - c.claimed_at)), 0)::float8
FROM open o CROSS JOIN LATERAL (
  SELECT c.claimed_at FROM {n.s}.claims_{s} c WHERE c.claim_id = o.claim_id ORDER BY c.claim_id LIMIT 1) c"""


_SESSION = """coalesce('pid ' || a.pid || ' (' || concat_ws(', ', nullif(a.application_name, ''), a.state) || ')',
                'prepared transaction ' || quote_literal(p.gid)),
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared, clock_timestamp()))::float8"""


@lru_cache
def _users_sql(n: Names) -> str:
    """Who has which segment: its number, and the session."""
    return f"""
SELECT DISTINCT s.seg, {_SESSION}
FROM {n.s}.segments s CROSS JOIN unnest(ARRAY[{", ".join(f"'{log}'" for log in LOGS)}]) log
JOIN pg_locks l ON l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = to_regclass({n.literal + " || '.' || log || '_' || s.seg"})
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks x   -- of a prepared transaction: the lock on its own number
  ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
WHERE a.pid IS NOT NULL OR p.gid IS NOT NULL
ORDER BY 1, 3 DESC"""


_OLDEST_SQL = f"""
SELECT {_SESSION} FROM (
  SELECT pid FROM pg_stat_activity
  WHERE backend_type = 'client backend' AND datname = current_database()
    AND xact_start IS NOT NULL AND pid <> pg_backend_pid()) o
LEFT JOIN pg_stat_activity a ON a.pid = o.pid
LEFT JOIN pg_prepared_xacts p ON false
UNION ALL
SELECT {_SESSION} FROM pg_prepared_xacts p LEFT JOIN pg_stat_activity a ON false WHERE p.database = current_database()
ORDER BY 2 DESC LIMIT 10"""


def diagnose(schema: str = "awa") -> Op[Diagnosis]:
    """Look at everything; some statements, each by itself."""
    n = Names(schema)

    def plan() -> Plan[Diagnosis]:
        moved: Rows = yield elsewhere(n)
        rows: Rows = yield Statement("doctor.segments", _segments_sql(n))
        segments: list[Segment] = []
        users: defaultdict[int, list[Session]] = defaultdict(list)
        for s, *session in (yield Statement("doctor.users", _users_sql(n))):
            users[s].append(Session(*session))
        for s, state, quiet, age, size in rows:
            running, oldest, waiting = 0, 0.0, 0
            if state != "free":
                running, oldest = (yield Statement(f"doctor.running.{s}", running_sql(n, s)))[0]
                waiting = (yield Statement(f"prune.backlog.{s}", backlog_sql(n, s)))[0][0]
            since = None if state == "free" else age
            segments.append(Segment(s, state, quiet, since, size, running, oldest, waiting, tuple(users[s])))
        oldest_sessions: Rows = yield Statement("doctor.transactions", _OLDEST_SQL)
        leads: Rows = yield Statement(
            "doctor.leader",
            f"SELECT instance FROM {n.s}.leader WHERE expires_at > clock_timestamp() AND instance IS NOT NULL",
        )
        beats: Rows = yield Statement(
            "doctor.workers",
            f"SELECT id, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 FROM {n.s}.instances ORDER BY id",
        )
        calls: Rows = yield Statement(
            "doctor.callbacks",
            "SELECT (SELECT count(*) FROM"
            f" (SELECT FROM {n.s}.callbacks WHERE state IN (1, 2) ORDER BY timeout_at, job_id LIMIT 10000) c)::int,"
            f" coalesce((SELECT extract(epoch FROM clock_timestamp() - min(timeout_at)) FROM {n.s}.callbacks"
            " WHERE state IN (1, 2)), 0)::float8",
        )
        return Diagnosis(
            tuple(segments),
            moved[0][0],
            leads[0][0] if leads else None,
            len(beats),
            {id: age for id, age in beats if age >= SILENT},
            tuple(Session(*row) for row in oldest_sessions),
            calls[0][0],
            max(0.0, calls[0][1]),
        )

    return Op("diagnose", plan, safe_to_retry=True)
