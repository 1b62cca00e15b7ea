"""`awa demo`: mixed jobs on every driver in turn, each of them accounted for.

`scenario.py` says what is enqueued and what must become of it, `drivers.py` carries it out on each package, `account.py`
compares, `display.py` shows.
"""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from awa_sync.cli.demo.account import Account, settle
from awa_sync.cli.demo.display import Display
from awa_sync.cli.demo.drivers import DRIVERS
from awa_sync.cli.demo.scenario import FAILS_FOR_GOOD, FAILS_LAST, FAILS_ONCE, Log, mixed

__all__ = ["demonstrate"]


def demonstrate(dsn: str, jobs: int) -> bool:
    """Run the demo in a schema of its own, dropped at the end. Whether everything is accounted for."""
    schema = f"awa_demo_{uuid4().hex[:8]}"
    accounts: list[Account] = []
    with Display() as display, _without_what_is_meant():
        try:
            for name, (modules, work) in DRIVERS.items():
                missing = [module for module in modules if importlib.util.find_spec(module) is None]
                if missing:
                    display.say(f"{name}: left out, {', '.join(missing)} is not installed")
                    continue
                errands = mixed(name, jobs)
                log = Log(errands)
                with display.driver(name, log.expected) as progress:
                    rows, seconds = work(dsn, schema, errands, log, progress)
                account = settle(name, errands, log, rows, seconds)
                display.finish(account)
                accounts.append(account)
        finally:
            with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))
        display.table(accounts)
    return bool(accounts) and not any(account.problems for account in accounts)


@contextmanager
def _without_what_is_meant() -> Iterator[None]:
    """Whatever else a worker logs is shown."""
    meant = (FAILS_ONCE, FAILS_LAST, FAILS_FOR_GOOD)

    def is_shown(record: logging.LogRecord) -> bool:
        said: dict[str, object] = getattr(record, "awa", {})
        return not str(said.get("error", "")).endswith(meant)

    logger = logging.getLogger("awa")
    logger.addFilter(is_shown)
    try:
        yield
    finally:
        logger.removeFilter(is_shown)
