"""Sleepers announce themselves, so that producers need not notify a worker that is awake.

A worker about to sleep takes, on its listening connection, an advisory lock in share mode for each of its queues, and then
looks once more. A producer tries the same lock in exclusive mode: if that fails somebody sleeps, and it sends NOTIFY; see
`Names.wake`. A wake-up missed between the two costs one step of the polling back-off; a lock left behind by a dead
connection costs needless notifications until the server notices. The locks belong to the session, which is that of LISTEN
anyway; nothing else of the library needs a session.
"""

from __future__ import annotations

from collections.abc import Sequence

from awa_proto.job import Attempt
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store.queue.names import Names


def announce(n: Names, queues: Sequence[str], held: Sequence[str]) -> Op[None]:
    """Say that this worker sleeps and wants to be woken for these queues, and for no others.

    held: what it last announced on this connection. Locks count how often they were taken, so only what is new is taken
    and what is dropped is released; what stays is held all the time. Nothing to do is still a sign of life.
    """
    key = f"hashtextextended(q, {n.seed('asleep')})"
    statement = Statement(
        "announce",
        f"SELECT (SELECT count(pg_advisory_lock_shared({key})) FROM unnest($1::text[]) q),"
        f" (SELECT count(pg_advisory_unlock_shared({key})) FROM unnest($2::text[]) q)",
        (sorted({*queues} - {*held}), sorted({*held} - {*queues})),
    )

    def plan() -> Plan[None]:
        yield statement

    return Op("announce", plan)


def withdraw() -> Op[int | None]:
    """Say that it is awake again. The number of the server process that heard it."""

    def plan() -> Plan[int | None]:
        [(pid, _)] = yield Statement("withdraw", "SELECT pg_backend_pid(), pg_advisory_unlock_all()")
        return int(pid)

    return Op("withdraw", plan, safe_to_retry=True)


def echo(n: Names, payload: str) -> Op[None]:
    """A notification that says nothing: does it arrive?"""

    def plan() -> Plan[None]:
        yield Statement("echo", f"SELECT {n.notify('$1::text')}", (payload,))

    return Op("echo", plan, safe_to_retry=True)


def tell_ended(n: Names, attempts: Sequence[Attempt]) -> Op[None]:
    """Tell whoever runs these attempts that they are ended."""

    def plan() -> Plan[None]:
        payloads = [f"!{attempt.id}:{attempt.run_lease}" for attempt in attempts]
        yield Statement("tell_ended", f"SELECT {n.notify('p')} FROM unnest($1::text[]) p", (payloads,))

    return Op("tell_ended", plan, safe_to_retry=True)
