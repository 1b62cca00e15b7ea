"""What the database says of how all is: its version, the workers it knows, who leads, and the ring."""

from __future__ import annotations

from awa_proto.health import InstanceHealth, RingHealth, StoreHealth
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store.queue.names import Names

PATIENCE = 5.0
"""Seconds a statement gets. Who asks how all is wants an answer, be it that there is none."""
MOST_SHOWN = 1000


def health(n: Names) -> Op[StoreHealth]:
    """One look; nothing is written, so it works on a standby too."""
    facts = Statement(
        "health",
        f"""
SELECT current_setting('server_version'),
       (SELECT coalesce(max(version), 0)::int FROM {n.s}.migrations),
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
       (SELECT instance FROM {n.s}.leader WHERE expires_at > clock_timestamp()),
       (SELECT count(*)::int FROM {n.s}.segments WHERE state = 'free'),
       (SELECT count(*)::int FROM {n.s}.segments WHERE state = 'open'),
       (SELECT count(*)::int FROM {n.s}.segments WHERE state = 'sealed'),
       (SELECT max(opened_at) FROM {n.s}.segments WHERE state = 'open')""",
    )
    instances = Statement(
        "health.instances",
        f"""
SELECT id, hostname, pid, version, queues, started_at,
       extract(epoch FROM clock_timestamp() - started_at)::float8,
       extract(epoch FROM clock_timestamp() - heartbeat_at)::float8
FROM {n.s}.instances
ORDER BY id
LIMIT $1::int""",
        (MOST_SHOWN,),
    )

    def plan() -> Plan[StoreHealth]:
        [row], workers = yield (facts, instances)
        server, schema, read_only, leader, free, opened, sealed, since = row
        return StoreHealth(
            server,
            schema,
            read_only,
            leader,
            tuple(
                InstanceHealth(id, host, pid, version, tuple(queues), started, max(age, 0.0), max(silent, 0.0))
                for id, host, pid, version, queues, started, age, silent in workers
            ),
            RingHealth(free, opened, sealed, since),
        )

    return Op("health", plan, safe_to_retry=True, timeout=PATIENCE)
