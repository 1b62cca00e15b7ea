"""The systems that can be measured, as the harness knows them; how each is driven stands in the module it names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class System:
    """A system and where it lives.

    Attributes:
        module: The adapter, in this package.
        distribution: Whose version is reported.
        needs: What pip installs into an environment of its own; none means our own environment.
        environment: Its name, where it is not that of the system.
        unfinished: A query for the number of jobs that the database does not call completed.
        copies: Whether it has a COPY.
        quiet: Whether it can enqueue without waking anybody.
        features: Whether it has hooks, follow-ups and outputs, so that their cost can be measured.
    """

    name: str
    module: str
    distribution: str
    unfinished: str
    needs: tuple[str, ...] = ()
    environment: str = ""
    copies: bool = False
    quiet: bool = False
    features: bool = False


BASELINE = "pgqueuer"

_OURS = """
    SELECT (SELECT count(*) FROM awa.ready) + (SELECT count(*) FROM awa.deferred) + (SELECT count(*) FROM awa.failed)
         - (SELECT coalesce(sum(cardinality(idx)), 0) FROM awa.closures)
"""  # each row of ready is an attempt, each index of a closure the end of one

SYSTEMS = {
    system.name: system
    for system in (
        System("awa-asyncio", "our_asyncpg", "awa-queue", _OURS, copies=True, quiet=True, features=True),
        System("awa-asyncio-psycopg", "our_psycopg", "awa-queue", _OURS, copies=True, quiet=True, features=True),
        System("awa-trio", "our_trio", "awa-queue", _OURS, copies=True, quiet=True, features=True),
        System("awa-sync", "our_sync", "awa-queue", _OURS, copies=True, quiet=True, features=True),
        System(
            "pgqueuer",
            "peer_pgqueuer",
            "pgqueuer",
            "SELECT count(*) FROM pgqueuer",
            needs=("pgqueuer[asyncpg]==1.6.0", "uvloop"),
        ),
        System(
            "pgqueuer-wide",
            "peer_pgqueuer_wide",
            "pgqueuer",
            "SELECT count(*) FROM pgqueuer",
            needs=("pgqueuer[asyncpg]==1.6.0", "uvloop"),
            environment="pgqueuer",
        ),
        System(
            "procrastinate",
            "peer_procrastinate",
            "procrastinate",
            "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'",
            needs=("procrastinate==3.10.0", "psycopg[binary]"),
        ),
        System(
            "awa-pg",
            "peer_awa_pg",
            "awa-pg",
            "SELECT count(*) FROM awa.jobs WHERE state <> 'completed'",
            needs=("awa-pg==0.6.9",),
            copies=True,
        ),
    )
}
